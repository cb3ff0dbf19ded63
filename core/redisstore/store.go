// Package redisstore keeps the state of every mechanism on Redis 6.2 or later, or on a server that
// is compatible with it: a single one, behind Sentinel, or a Cluster.
//
// Every step is one script that runs on the server and uses its clock. Keys are hashed before they
// are sent, and every Redis key of the store has an expiry.
//
// https://github.com/lockkeeper/lockkeeper/blob/main/docs/redis.md lists the servers that were
// tested, the rights that a Redis user needs, and the settings of managed services and of the
// client.
package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core/internal/denials"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a store.Store on Redis. All methods may be called concurrently.
//
// A call waits for a connection, and then for the reply, at most for the store's timeout each
// ([WithTimeout]), and never beyond the end of its caller's context. A large request, or one with a
// possibly large reply, has the timeout again for each MiB. The cancellation of a context while
// Redis does not reply takes effect at the next deadline, the store's or its own.
//
// Concurrent calls are batched: decisions of token buckets in one script call, other calls in a
// pipeline. In a burst, a call for a lock, a permit or an operation may be queued in the client;
// that time does not count against the timeout while Redis is replying, up to three times the
// timeout. If Redis does not reply, the call fails within one and a half times the timeout.
//
// Each node has a circuit breaker, which opens on the evidence of a new connection:
//   - The first call that is refused a connection opens it.
//   - A call that fails otherwise, or has no reply for half of the timeout, causes a probe of the
//     node: a script that writes, on a connection of its own. If the probe is refused, or has no
//     reply for the timeout, the breaker opens.
//
// So a node that hangs costs each caller two calls at most, of the timeout each. While the breaker
// is open, calls fail at once, and the node is probed every 250 ms. Only calls that finish
// something, such as releases, are still tried. If the node refuses only writes, Inspect, List and
// Peek are tried, too. While calls to a Cluster fail, the store refreshes its map once a second, to
// find a replica that has taken over.
//
// If the probe works, the pooled connections may be stale. The store closes connections older
// than the probe, including the application's, and repeats requests that may be sent twice, if
//   - a pooled connection led to a server that takes no writes, or
//   - a pooled connection fell silent, and none of the pool has received data since.
//
// After the first request for a lock, a store keeps one connection for the channel of its pushes,
// "lk:inbox:" and a random text. If an ACL forbids that, or PUBLISH in scripts, a hand-off takes up
// to a second more.
type Store struct {
	config config
	client redis.UniversalClient
	redis  *script.Client // runs scripts and commands on client
	hooks  hooks.Shutdown

	spareDecisions sync.Pool // of *decision that have ended
	denials        denials.Cache

	waiting *waiting.Process[leaseKeys]
	inbox   *inbox

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var (
	_ store.Store    = (*Store)(nil)
	_ namesake.Store = (*Store)(nil)
)

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	prefix        string
	timeout       time.Duration
	secret        []byte
	allowEviction bool
	acks          int
	ackTimeout    time.Duration
	noDenialCache bool
	logger        *slog.Logger
	providers     telemetry.Providers
}

// WithPrefix sets the prefix of every Redis key of the store: "lk" by default, 1 to 64 bytes
// without braces. Stores with the same prefix on the same Redis share their state.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTimeout sets the store's timeout: 250 ms by default, 1 ms to 1 min. It is the maximum time
// for a reply, and also for one of the client's connections, which takes about three round trips to
// establish. A call without a connection in time fails, and the connection is established for later
// calls. Set more for a distant server; [Store.Check] reports how much.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithSecret hashes the keys of token buckets, locks and semaphores by HMAC with this secret, so
// that a reader of the database cannot test guesses of addresses or user names. (For operations,
// use guard.WithSecret.) Every process needs the same secret.
//
// Without it the database contains the keys of locks and semaphores in use as text. With it the Key
// of a store.LeaseState from ListLeases is the hash.
func WithSecret(secret []byte) Option {
	return func(c *config) { c.secret = append([]byte(nil), secret...) }
}

// WithoutDenialCache sends every decision to Redis. Without this option, a denied key is denied
// again from a local cache until Redis could decide otherwise, and for at most a second. So resets
// by other processes, and tokens that they give back, take up to a second to have an effect. The
// cache has up to 65,536 keys.
func WithoutDenialCache() Option { return func(c *config) { c.noDenialCache = true } }

// WithLogger sets the logger for outages of Redis and their end, damaged records, and
// misconfigurations: slog.Default() by default. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = cmp.Or(l, c.logger) }
}

// WithMeterProvider sets the provider of the store's metrics. The default, also for nil, is the
// global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// New returns a store on client. The caller closes the client, after the store. New sends nothing
// yet. A *redis.Client, or that of a Cluster's node, gets a hook that watches its dials and its
// connections, so that the store notices an unreachable server and stale connections at once. After
// Close the hook does nothing. Idle connections from before are closed, since the hook does not
// watch them.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// It returns an error for an option out of its range, and for a client that is nil, does not have
// ContextTimeoutEnabled, or is neither a *redis.Client nor a *redis.ClusterClient. A Ring is
// refused: while a shard is unreachable, another one would grant its locks again. So is a
// ClusterClient with ReadOnly, RouteByLatency or RouteRandomly: it reads from replicas, which are
// behind. Leave the client's ReadTimeout longer than the store's timeout.
func New(client redis.UniversalClient, opts ...Option) (*Store, error) {
	if naming.IsNil(client) {
		return nil, errors.New("redisstore: New: nil client")
	}
	c := config{prefix: "lk", timeout: 250 * time.Millisecond, logger: slog.Default()}
	option.Apply(&c, opts)
	switch {
	case c.prefix == "" || len(c.prefix) > 64 || strings.ContainsAny(c.prefix, "{}"):
		return nil, fmt.Errorf("redisstore: New: prefix %q has not 1 to 64 bytes without braces", c.prefix)
	case c.timeout < time.Millisecond || c.timeout > time.Minute:
		return nil, fmt.Errorf("redisstore: New: a timeout of %v is not between 1ms and 1m", c.timeout)
	}
	poolSize, readTimeout, err := checkClient(client)
	if err != nil {
		return nil, err
	}
	if err := c.checkAcks(readTimeout); err != nil {
		return nil, err
	}
	s := &Store{namesakes: new(namesakes), client: client, config: c}
	if !c.noDenialCache {
		s.denials.Init()
	}
	s.inbox = newInbox(c.prefix)
	s.redis = script.New(script.Config{
		Redis: client, PoolSize: poolSize, Scripts: allScripts, Timeout: c.timeout, ProbeKey: c.prefix + ":probe",
		Acks: c.acks, AckTimeout: c.ackTimeout,
		CheckServer: s.checkEviction,
		Attach:      func(n *script.Node) any { return s.newDecisions(n) },
		Logger:      c.logger, Providers: c.providers, ScopeName: ScopeName, Operations: operations, Counter: s.Calls(),
	})
	s.Serves(s.redis.IsDown)
	s.waiting = waiting.New(waiting.Store[leaseKeys]{
		Hooks: &s.hooks, Life: s.redis.Life(), Start: s.redis.Start, Listen: s.listen, Broken: s.inbox.broken,
		Acquire: s.acquireLease, Beat: s.beat, Check: s.checkInbox, Release: s.releaseUnwanted,
	})
	return s, nil
}

// checkClient returns the settings of a client that the store uses, or an error for a client that
// it cannot use.
func checkClient(client redis.UniversalClient) (poolSize int, readTimeout time.Duration, err error) {
	var obeys bool
	switch client := client.(type) {
	case *redis.Client:
		o := client.Options()
		poolSize, readTimeout, obeys = o.PoolSize, o.ReadTimeout, o.ContextTimeoutEnabled
	case *redis.ClusterClient:
		o := client.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return 0, 0, errors.New("redisstore: New: a ClusterClient that reads from replicas, which are behind their masters: " +
				"unset ReadOnly, RouteByLatency and RouteRandomly")
		}
		poolSize, readTimeout, obeys = o.PoolSize, o.ReadTimeout, o.ContextTimeoutEnabled
	case *redis.Ring:
		return 0, 0, errors.New("redisstore: New: a Ring cannot keep the promises of locks, semaphores and guards: " +
			"what a shard holds would be granted anew by another one whenever the first cannot be reached; use a Cluster")
	default:
		return 0, 0, fmt.Errorf("redisstore: New: a client of type %T is neither a *redis.Client nor a *redis.ClusterClient; "+
			"pass the one that it wraps", client)
	}
	if !obeys {
		return 0, 0, errors.New("redisstore: New: the client ignores the deadlines of contexts; set ContextTimeoutEnabled in its options")
	}
	return poolSize, readTimeout, nil
}

// Ping checks that Redis replies, even if the breaker is open.
func (s *Store) Ping(ctx context.Context) error {
	ping := script.Command{Operation: opPing, Urgency: script.Finishing}
	_, err := script.Do(ctx, s.redis.Whole(), ping, func(ctx context.Context) (string, error) {
		return s.client.Ping(ctx).Result()
	})
	return err
}

// AtShutdown implements store.Hooks.
func (s *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return s.hooks.AtShutdown(f)
}

// Shutdown implements store.Store.
func (s *Store) Shutdown(ctx context.Context) error { return s.hooks.Run(ctx) }

// Close implements store.Store. It does not close the client.
func (s *Store) Close() error {
	return s.hooks.Close(func() {
		s.redis.Close()
		s.denials.Stop()
	})
}
