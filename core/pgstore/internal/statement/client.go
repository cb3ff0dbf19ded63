// Package statement runs statements on a PostgreSQL server: each within a timeout, in its share of
// a pool of connections, behind a circuit breaker, and repeated where that is safe. It also sends
// pushes and listens to them. The meaning of the statements is their callers' concern. Of their
// schema the package uses the row of lk.schema_version, which probes lock, and lk.confirm_1, which
// waits for replicas.
package statement

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Client runs statements. All methods may be called concurrently.
type Client struct {
	config  Config
	made    time.Time
	pool    *pgxpool.Pool
	slots   slots  // of the pool
	shares  shares // of the pool
	workers *workers
	texts   sync.Map // of statements, by the text with the default schema

	telemetry     *telemetry.Store
	misconfigured *telemetry.Repeated
	breaker       *breaker.Breaker
	written       atomic.Bool  // the server has taken writes
	heard         atomic.Int64 // time since made of the last reply to a call that writes
	slowUntil     atomic.Int64 // time since made: see recentlySlow
	listener      listener
	outbox        outbox

	closing    sync.Mutex // guards changes of closed and background together
	closed     bool
	life       context.Context // ends when the client is closed
	end        context.CancelFunc
	background sync.WaitGroup
	cut        context.Context // ends all connections
	cutAll     context.CancelFunc
}

// Config is the configuration of a Client.
type Config struct {
	Pool        *pgxpool.Config // whose hooks are called as its pool would
	Listen      *pgx.ConnConfig // of the connection that listens; nil if none does
	Schema      string          // of the tables and functions
	Timeout     time.Duration   // for a connection, and again for the reply
	Connections int             // in use at a time
	Pooled      bool            // the server is behind a pooler of transactions

	// CheckServer returns why a new connection must not be used.
	CheckServer func(context.Context, *pgx.Conn) error
	// Subscribed is called when pushes arrive from now on: earlier ones are lost.
	Subscribed func()
	// Pushed is called with each push.
	Pushed func(push string)

	Logger     *slog.Logger
	Providers  telemetry.Providers
	ScopeName  string
	Operations []Operation   // of all calls
	Counter    *live.Counter // of calls; may be nil
}

// New returns a client. It connects to nothing yet.
func New(config Config) (*Client, error) {
	db := &Client{config: config, made: time.Now()}
	db.life, db.end = context.WithCancel(context.Background())
	db.cut, db.cutAll = context.WithCancel(context.Background())
	server := config.Pool.ConnConfig
	pool, err := pgxpool.NewWithConfig(db.life, db.settings())
	if err != nil {
		db.end()
		return nil, err
	}
	db.pool, db.slots = pool, make(slots, config.Connections)
	db.shares.init(config.Connections)
	db.workers = newWorkers(db.life, config.Connections)
	db.breaker = db.newBreaker(server)
	names := []string{opNotify.Name}
	for _, op := range config.Operations {
		names = append(names, op.Name)
	}
	db.telemetry = telemetry.NewStore(config.Providers, config.ScopeName, "postgresql", names, db.breaker.IsOpen, config.Counter)
	db.misconfigured = telemetry.NewRepeated(config.Logger.With("store", "postgresql", "address", AddressOf(server)),
		"lockkeeper: postgresql is misconfigured")
	db.listener.init()
	if config.Listen != nil {
		db.listener.settings = db.listenerSettings(config.Listen)
	}
	return db, nil
}

// IsDown reports whether the server is taken to be down.
func (db *Client) IsDown() bool { return db.breaker.IsOpen() }

// Start runs f in the background; Close waits for it. If the client is closed, it returns false
// instead.
func (db *Client) Start(f func()) bool {
	db.closing.Lock()
	defer db.closing.Unlock()
	if db.closed {
		return false
	}
	db.background.Go(f)
	return true
}

// Life returns a context that ends when the client is closed.
func (db *Client) Life() context.Context { return db.life }

// Pool returns the pool of connections.
func (db *Client) Pool() *pgxpool.Pool { return db.pool }

// Close sends the pushes that are left, makes later calls fail with store.ErrClosed, waits for
// background work, and closes the connections.
func (db *Client) Close() {
	db.outbox.flush(db.config.Timeout)
	db.closing.Lock()
	db.closed = true
	db.closing.Unlock()
	db.end()
	db.background.Wait()
	// Statements in flight may end, and the server learns that the connections are no longer used. pgx
	// would wait for a server that does not reply for much longer.
	grace := time.AfterFunc(3*db.config.Timeout/2, db.cutAll)
	db.pool.Close()
	grace.Stop()
	db.cutAll()
	db.telemetry.Close()
}

// Unhurried is the timeout of background work, for which no caller waits.
func (db *Client) Unhurried() time.Duration { return max(5*time.Second, 4*db.config.Timeout) }

// logFault logs errors that do not end by themselves.
func (db *Client) logFault(ctx context.Context, err error) {
	if isMisconfigured(err) {
		db.misconfigured.Found(ctx, "cause", string(store.CauseOf(err)), "error", err)
	}
}
