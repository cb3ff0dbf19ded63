// Package etcdstore keeps locks, semaphores, latches and documents on etcd 3.4 or later. It has no token
// buckets, guards or delayed tasks: a transaction of etcd reads no clock, and each write stays in its
// history until that is compacted.
//
// A request is an entry that etcd orders. It is granted by its position: once it fits beside the
// entries before it, which can only leave, it holds, and nothing is written. A write into the same
// etcd that only a holder may make needs no fence: see [Held].
package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a store.Leases, a store.Latches and a store.Documents on etcd, with all of their abilities. All
// methods may be called concurrently.
//
// The entries of a process hang on leases of etcd that they share: one of 5 s for requests that wait,
// and for the first moments of holds; and one for each TTL in use, a second longer than that. While
// they last, holds cost a call of KeepAliveOnce a second for each of these leases, and for each
// renewal of up to 120 of them a read.
//
// The store ends its own holds in time, to the millisecond. The holds of a dead process end with
// its lease on the server: after its TTL, and up to two seconds more; after a change of the leader
// later, since the new one counts leases anew. A document has a lease of its own, so that it outlives the
// process, and ends in the same way.
type Store struct {
	config  config
	client  *clientv3.Client
	process string // an ID
	hooks   hooks.Shutdown

	life      context.Context // ends with Close
	end       context.CancelFunc
	running   background.Group
	breaker   *breaker.Breaker
	telemetry *telemetry.Store
	checked   atomic.Bool   // the server is of a release that the store works with
	base      atomic.Int64  // of fences, as last read; 0 before
	streams   atomic.Uint64 // how many streams of watches were found to hang

	leases leases
	lost   hooks.Listeners
	inbox  sync.Once // starts the watch of the inbox
	opened openings
	ends   documentEnds

	mu        sync.Mutex
	keys      map[string]*key // with requests of this process
	withdrawn expiry.Table[string, struct{}]
	condemned map[string]*condemned // entries to delete, by their names in etcd
	sweeping  bool

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var (
	_ store.Leases          = (*Store)(nil)
	_ store.LeaseDowngrader = (*Store)(nil)
	_ store.LeaseVerifier   = (*Store)(nil)
	_ store.LeaseLister     = (*Store)(nil)
	_ store.LeaseRevoker    = (*Store)(nil)
	_ store.Latches         = (*Store)(nil)
	_ store.Documents       = (*Store)(nil)
	_ store.Checker         = (*Store)(nil)
	_ namesake.Store        = (*Store)(nil)
)

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	prefix    string
	secret    []byte
	timeout   time.Duration
	logger    *slog.Logger
	providers telemetry.Providers
	oldest    [2]int // release of etcd
	quota     int64  // of the database, of a server that does not tell; in bytes
	history   int64  // how many revisions Check takes for too many
}

// WithPrefix sets the prefix of the store's keys in etcd, "lockkeeper" by default; the store adds a
// slash. Stores with the same prefix in the same cluster share their state. A prefix has 1 to 256
// bytes, and neither begins nor ends with a slash.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithSecret hashes names, keys and participants by HMAC with this secret, so that a reader of the
// database cannot test guesses of addresses or user names. Every process needs the same secret.
//
// Without it etcd has the keys of locks and semaphores in use as text. With it the Key of a
// store.LeaseState from ListLeases is the hash. The labels of holders, and names and data of documents,
// are text in either case.
func WithSecret(secret []byte) Option {
	return func(c *config) { c.secret = append([]byte(nil), secret...) }
}

// WithTimeout sets the store's timeout: 1 s by default, 10 ms to 1 min. It is the maximum time of a
// step. If the client has several endpoints, a step without a reply is sent up to three times in that
// time, as a rule to different members.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

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

// maxWithdrawn bounds the IDs of released requests that a store keeps.
const maxWithdrawn = 1 << 14

// New returns a store on the cluster of a client. It calls nothing yet, and Close does not close the
// client. It returns an error for a nil client, for one without endpoints, and for an option out of
// its range.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
func New(c *clientv3.Client, opts ...Option) (*Store, error) {
	config := config{prefix: "lockkeeper", timeout: time.Second, logger: slog.Default(), oldest: [2]int{3, 4}, quota: 2 << 30, history: 10_000}
	option.Apply(&config, opts)
	if err := config.check(c); err != nil {
		return nil, fmt.Errorf("etcdstore: New: %w", err)
	}
	config.prefix += "/"
	s := &Store{
		config: config, client: c, process: naming.NewID(), namesakes: new(namesakes),
		keys: make(map[string]*key), withdrawn: expiry.NewTable[string, struct{}](maxWithdrawn, nil),
		condemned: make(map[string]*condemned),
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.leases.store = s
	s.opened.store, s.ends.store = s, s
	s.breaker = breaker.New(breaker.Config{
		Server: "etcd", Address: strings.Join(c.Endpoints(), ","), Logger: config.logger,
		Probe: s.probe, IsDecisive: isDecisive, Explain: func(failure error) error { return failure },
		Life: s.life, Start: s.start,
	})
	s.telemetry = telemetry.NewStore(config.providers, ScopeName, "etcd", operations, s.breaker.IsOpen, s.Calls())
	s.Serves(s.breaker.IsOpen)
	return s, nil
}

func (c *config) check(client *clientv3.Client) error {
	switch {
	case client == nil:
		return errors.New("nil client")
	case len(client.Endpoints()) == 0:
		return errors.New("the client has no endpoints")
	case c.timeout < 10*time.Millisecond || c.timeout > time.Minute:
		return fmt.Errorf("a timeout of %v is not between 10ms and 1m", c.timeout)
	case c.prefix == "" || len(c.prefix) > 256 || strings.HasPrefix(c.prefix, "/") || strings.HasSuffix(c.prefix, "/"):
		return fmt.Errorf("prefix %q is not 1 to 256 bytes without a slash at its ends", c.prefix)
	}
	return nil
}

// start runs f in the background, or returns false if the store is closed.
func (s *Store) start(f func()) bool {
	s.running.Begin()
	if s.life.Err() != nil {
		s.running.End()
		return false
	}
	go func() {
		defer s.running.End()
		f()
	}()
	return true
}

// Ping checks that a majority of the cluster replies, even if the breaker is open.
func (s *Store) Ping(ctx context.Context) error {
	_, err := run(ctx, s, opPing, func(ctx context.Context, _ bool) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, s.fenceKey(), clientv3.WithKeysOnly())
	})
	return err
}

// AtShutdown implements store.Hooks.
func (s *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return s.hooks.AtShutdown(f)
}

// Shutdown closes the mechanisms on the store, as store.Store says.
func (s *Store) Shutdown(ctx context.Context) error { return s.hooks.Run(ctx) }

// closeTimeout is how long Close waits for entries that are being deleted, and then for what runs in
// the background.
const closeTimeout = time.Second

// Close is a Shutdown of a second at most, whose error it returns. It then ends the store, and all
// that it has started. Remaining holds then end with their leases. Close does not close the client.
func (s *Store) Close() error {
	return s.hooks.Close(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		s.awaitSweep(ctx)
		s.leases.revokeUnused(ctx)
		s.end()
		s.breaker.Stop()
		s.stopTimers()
		s.opened.stop()
		s.ends.stop()
		ending, stop := context.WithTimeout(context.Background(), closeTimeout)
		defer stop()
		_ = s.running.Wait(ending)
		s.telemetry.Close()
	})
}
