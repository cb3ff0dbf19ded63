// Package pgstore keeps the state of every mechanism on PostgreSQL 14 or later. Beyond the other
// stores it can:
//   - run an operation exactly once together with its effect ([Do], [Complete]);
//   - make a lock exclude even a holder that was paused ([Bind]);
//   - put and cancel a task in the caller's transaction ([Store.PutTaskIn], [Store.CancelTaskIn]).
//
// Every step is one statement, or one function that runs on the server, and uses the server's
// clock. [Migrate] creates the tables and functions, in a schema of their own. [Schema] returns the
// statements, for migrations by other means.
package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a store.Store on PostgreSQL. All methods may be called concurrently.
//
// It has a pool of connections of its own ([WithConnections]), and one more on which it listens. A
// call waits for a connection, and then for the reply, at most for the store's timeout each
// ([WithTimeout]), and never beyond the end of its caller's context. The server ends a statement
// after the timeout, too.
//
// If a call's context ends, its statement ends by itself. The exception is a lookup: if
// it has no reply 10 ms later, its connection is closed. For the next 10 s lookups are left to end
// by themselves as well.
type Store struct {
	config config
	db     *statement.Client
	listen *pgx.ConnConfig // nil if the store listens nowhere
	hooks  hooks.Shutdown

	leases
	settled      keyMarks // operations whose record says how they ended
	confirmed    keyMarks // such records, by operation and owner, that are on the server's synchronous replicas
	full         keyMarks // scopes that had no room
	transactions sync.Map // of operations that run in a transaction: *transaction by owner
	buckets      buckets
	queues       queueHints

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var (
	_ store.Store      = (*Store)(nil)
	_ store.TaskKeeper = (*Store)(nil)
	_ namesake.Store   = (*Store)(nil)
)

// Option is an optional setting of [New] and [NewFromPool].
type Option func(*config)

type config struct {
	schema      string
	oldest      int           // release of PostgreSQL
	old         time.Duration // of a transaction that Check finds
	timeout     time.Duration
	connections int
	pooled      bool
	listenDSN   string // "" if it is the store's, or if it listens nowhere
	secret      []byte
	logger      *slog.Logger
	providers   telemetry.Providers

	noDenialCache bool
	loggedBuckets bool
}

// WithSchema sets the schema of the store's tables and functions, "lk" by default. A name is a
// lower-case letter, and then at most 30 lower-case letters, digits and underscores; it does not
// begin with "pg_". Stores with the same schema in the same database share their state.
func WithSchema(name string) Option { return func(c *config) { c.schema = name } }

// WithTimeout sets the store's timeout: 1 s by default, 10 ms to 1 min. It is the maximum time for
// one of the pool's connections, and again for the reply.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithConnections sets the largest number of connections in use in the store's pool: 8 by default,
// 1 to 1,000. Further connections are the one on which the store listens, a probe, and for up to a
// second dead ones beside their successors.
//
// Calls are limited to shares of the pool, so that no kind of call, and no scope, keeps others
// waiting:
//   - A quarter of the connections is for renewals, releases and pushes alone.
//   - At most half of them is in use for records.
//   - At most a quarter is in use for the records of one scope.
//
// A call beyond its share waits in the process, for the timeout at most. A service whose operations
// are mostly of a single scope needs more connections. All kinds share a single connection.
func WithConnections(n int) Option { return func(c *config) { c.connections = n } }

// WithTransactionPooler is for a DSN of a pooler that gives each transaction another connection to
// the server, such as PgBouncer in transaction mode. listen is a DSN of the server itself, or of a
// pooler in session mode, for the one connection on which the store listens. With "" it listens
// nowhere, and a waiter notices its grant within a second, and not at once.
//
// The store then keeps no prepared statements, and its connections have no settings of their own.
// Set these for the store's user, by ALTER ROLE:
//   - default_transaction_isolation to 'read committed', which the store checks;
//   - lock_timeout to 0;
//   - statement_timeout and idle_in_transaction_session_timeout to nine tenths of the store's
//     timeout.
func WithTransactionPooler(listen string) Option {
	return func(c *config) { c.pooled, c.listenDSN = true, listen }
}

// WithSecret hashes the keys of token buckets, locks and semaphores by HMAC with this secret, so
// that a reader of the database cannot test guesses of addresses or user names. (For operations,
// use guard.WithSecret.) Every process needs the same secret.
//
// Without it the database contains the keys of locks and semaphores in use as text. With it the Key
// of a store.LeaseState from ListLeases is the hash. The keys and payloads of tasks are kept as they
// are, since workers get them back.
func WithSecret(secret []byte) Option {
	return func(c *config) { c.secret = append([]byte(nil), secret...) }
}

// WithoutDenialCache sends every decision about token buckets to the server. Without this option, a
// local cache denies a denied key again until the server could decide otherwise, for at most a
// second. Resets by other processes, and tokens that they give back, take effect that much later.
// The cache has up to 65,536 keys.
func WithoutDenialCache() Option { return func(c *config) { c.noDenialCache = true } }

// LoggedBuckets is an option of [Migrate] and [Schema] only. Token buckets then survive a crash of
// the server, and are on its replicas. Without it their table is unlogged: charges are several
// times as fast, and after a crash of the server, or a failover, all buckets are full. The table of
// an existing schema is changed too. This rewrites it while all charges wait.
func LoggedBuckets() Option { return func(c *config) { c.loggedBuckets = true } }

// WithLogger sets the logger for outages of the server and their end, and misconfigurations:
// slog.Default() by default. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = cmp.Or(l, c.logger) }
}

// WithMeterProvider sets the provider of the store's metrics. The default, also for nil, is the
// global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// New returns a store on the database that the DSN names, a URL or a list of key=value as pgx takes
// it. It connects to nothing yet. It returns an error for a DSN that cannot be read, and for an
// option out of its range.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
func New(dsn string, opts ...Option) (*Store, error) {
	settings, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("pgstore: New: %w", err) // pgx hides the password
	}
	return newStore(settings, opts)
}

// NewFromPool returns a store on the database of a pool. It uses none of the pool's connections,
// and makes a pool of its own with the same settings: handlers that hold a connection while they
// wait for a lock would otherwise keep its holder from releasing it. The pool's hooks are called
// for the store's connections too. After AfterConnect, which may SET ROLE, the store makes the
// settings that it needs.
func NewFromPool(pool *pgxpool.Pool, opts ...Option) (*Store, error) {
	if pool == nil {
		return nil, errors.New("pgstore: NewFromPool: nil pool")
	}
	return newStore(pool.Config(), opts)
}

var schemaName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,30}$`)

func (c *config) check() error {
	if err := c.checkSchema(); err != nil {
		return err
	}
	switch {
	case c.timeout < 10*time.Millisecond || c.timeout > time.Minute:
		return fmt.Errorf("a timeout of %v is not between 10ms and 1m", c.timeout)
	case c.loggedBuckets:
		return errors.New("LoggedBuckets is an option of Migrate and Schema")
	case c.connections < 1 || c.connections > 1000:
		return fmt.Errorf("%d connections are not between 1 and 1000", c.connections)
	}
	return nil
}

func (c *config) checkSchema() error {
	switch {
	case !schemaName.MatchString(c.schema):
		return fmt.Errorf("schema %q is not a lower-case letter followed by "+
			"at most 30 lower-case letters, digits and underscores", c.schema)
	case strings.HasPrefix(c.schema, "pg_"):
		return fmt.Errorf("schema %q has a prefix that the server keeps for itself", c.schema)
	}
	return nil
}

func newStore(settings *pgxpool.Config, opts []Option) (*Store, error) {
	c := config{
		schema: statement.DefaultSchema, oldest: oldest, old: oldTransaction,
		timeout: time.Second, connections: 8, logger: slog.Default(),
	}
	option.Apply(&c, opts)
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("pgstore: New: %w", err)
	}
	s := &Store{namesakes: new(namesakes), config: c}
	if c.listenDSN != "" {
		var err error
		if s.listen, err = pgx.ParseConfig(c.listenDSN); err != nil {
			return nil, fmt.Errorf("pgstore: New: WithTransactionPooler: %w", err)
		}
	} else if !c.pooled {
		s.listen = settings.ConnConfig.Copy()
	}
	var err error
	if s.db, err = statement.New(statement.Config{
		Pool: settings, Listen: s.listen, Schema: c.schema, Timeout: c.timeout, Connections: c.connections, Pooled: c.pooled,
		CheckServer: s.checkServer,
		Subscribed:  func() { s.waiting.Subscribed() },
		Pushed:      func(push string) { s.waiting.Pushed(push) },
		Logger:      c.logger, Providers: c.providers, ScopeName: ScopeName, Operations: operations, Counter: s.Calls(),
	}); err != nil {
		return nil, fmt.Errorf("pgstore: New: %w", err)
	}
	s.Serves(s.db.IsDown)
	s.initLeases()
	s.initBuckets()
	s.db.Start(s.sweep)
	return s, nil
}

// Ping checks that the server replies, even if the breaker is open.
func (s *Store) Ping(ctx context.Context) error {
	_, err := statement.Run(ctx, s.db, statement.Call{Operation: opPing, Urgency: batch.Finishing}, statement.Ping)
	return err
}

// AtShutdown implements store.Hooks.
func (s *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return s.hooks.AtShutdown(f)
}

// Shutdown implements store.Store.
func (s *Store) Shutdown(ctx context.Context) error { return s.hooks.Run(ctx) }

// Close implements store.Store. It closes the store's own connections only.
func (s *Store) Close() error {
	return s.hooks.Close(func() {
		s.buckets.denials.Stop()
		s.db.Close()
	})
}
