// Package redisstore keeps the state of every mechanism on Redis 6.2 or later, or on a server that
// is compatible with it: a single one, behind Sentinel, or a Cluster.
//
// Every step is one script that runs on the server, by the server's clock. Keys are hashed before
// they are sent, and every key that the store writes expires.
//
// https://github.com/lockkeeper/lockkeeper/blob/main/docs/redis.md lists the servers that were tested,
// the rights that a Redis user needs, and what to set in managed services and in the client.
package redisstore

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/internal/shutdown"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a store.Store on Redis. All methods may be called concurrently.
//
// A call waits for a connection, and then for the reply, for no longer than the store's own deadline each
// ([WithTimeout]), and never longer than its caller's context. A large request, or a step that may have a large
// reply, has as long again for each MiB. A context that is canceled while Redis is silent is noticed at the next
// deadline, the store's or its own.
//
// Calls that are made while others are in flight go together: decisions of token buckets in one script call,
// everything else in a pipeline. In a burst, a call for a lock, a permit or an operation may so have to wait for
// its turn, which does not count while Redis answers others, for up to three times the deadline; if Redis
// answers nobody, the call fails within one and a half times the deadline.
//
// Each node has a circuit breaker. It opens when five calls in a row have failed while the node answered nobody
// else, and at once when the node refuses connections, the password, or writes. Calls then fail at once, and a
// script that writes, every 250 ms, finds out when the node works again. Only calls that finish what was begun are
// tried all the same. While calls to a Cluster fail, the store asks for its map once a second, and so finds a
// replica that has taken over.
//
// A store that has been asked for a lock keeps one connection for the channel on which it hears of
// grants, "lk:inbox:" and a random text. Where an ACL forbids that, or scripts may not PUBLISH, a
// lock takes up to a second more to change hands.
type Store struct {
	client   redis.UniversalClient
	config   config
	poolSize int
	made     time.Time
	nodes    nodes
	hooks    shutdown.Hooks

	plainScripts atomic.Bool // the server is older than 7
	deadlines    deadlines

	spareDecisions sync.Pool // of *decision that have ended
	spareSteps     sync.Pool // of *companion that have been answered
	denials        denials

	telemetry *telemetry.Store

	damage, misconfigured *telemetry.Repeated

	waiters waiters
	latches latches
	inbox   *inbox

	closing    sync.Mutex // makes closed and background change together
	closed     atomic.Bool
	stop       chan struct{}
	life       context.Context // ends when stop is closed
	end        context.CancelFunc
	background sync.WaitGroup

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var _ namesake.Store = (*Store)(nil)

var _ store.Store = (*Store)(nil)

// Option is an optional setting of [New].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	prefix        string
	timeout       time.Duration
	secret        []byte
	allowEviction bool
	acks          int
	ackTimeout    time.Duration
	forgetDenials bool
	logger        *slog.Logger
	providers     telemetry.Providers
}

// WithPrefix sets what every Redis key of the store begins with: "lk" if not set, 1 to 64 bytes
// without braces. Stores with the same prefix on the same Redis share their state.
func WithPrefix(prefix string) Option { return optionFunc(func(c *config) { c.prefix = prefix }) }

// WithTimeout sets the store's own deadline: 250 ms if not set, 1 ms to 1 min. That is how long Redis may take to
// reply, and how long a call waits for one of the client's connections, which takes about three round trips to
// make. A call that has had none in time fails, and the connection is made for later ones. Set more for a server
// that is far away; [Store.Check] says how much.
func WithTimeout(d time.Duration) Option { return optionFunc(func(c *config) { c.timeout = d }) }

// WithSecret has the keys of token buckets and locks hashed by HMAC under this secret, so that nobody
// who reads the database can test guesses of addresses or user names against them. (Operations have
// guard.WithSecret.) Every process needs the same one.
//
// Without it the database has the text of the keys of locks that are held or waited for. With it
// ListLocks cannot tell them: the Key of a store.LockState is then the hash.
func WithSecret(secret []byte) Option {
	return optionFunc(func(c *config) { c.secret = append([]byte(nil), secret...) })
}

// AllowEviction has locks and guards work on a server whose maxmemory-policy may evict a lock that
// is held, so that another may have it too, or the evidence that an operation has run. Without it
// they refuse to.
func AllowEviction() Option { return optionFunc(func(c *config) { c.allowEviction = true }) }

// WithoutRememberedDenials has the store ask Redis about every token. Without it a key that was denied is
// denied again without a question until the denial may have changed, and for a second at most: so long
// does a reset by another process take to be seen. Up to 65,536 keys are remembered. Tests that move the
// server's clock do without them too.
func WithoutRememberedDenials() Option { return optionFunc(func(c *config) { c.forgetDenials = true }) }

// WithLogger sets where the store says that Redis is down, and back, that a record in it is damaged, and
// what is wrong with its settings: slog.Default() if not set. It never logs keys.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithMeterProvider sets where the store's metrics go: to the global provider if not set, or nil.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) { c.providers.Meter = p })
}

// New returns a store on client, which stays the caller's to close, after the store. It sends nothing
// yet. A *redis.Client gets a hook that watches its connections being made, so that a server which is
// not there is noticed at once; after Close the hook does nothing.
//
// It returns an error for an option out of its range, and for a client that is nil, that has not
// ContextTimeoutEnabled, or that is neither a *redis.Client nor a *redis.ClusterClient. A Ring is refused: it asks
// another shard for what the first one has granted. Leave the client's ReadTimeout longer than the store's
// deadlines: the store keeps its own.
func New(client redis.UniversalClient, opts ...Option) (*Store, error) {
	if naming.IsNil(client) {
		return nil, errors.New("redisstore: New: nil client")
	}
	c := config{prefix: "lk", timeout: 250 * time.Millisecond, logger: slog.Default()}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
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
	s := &Store{namesakes: new(namesakes), client: client, poolSize: poolSize, config: c, made: time.Now(), stop: make(chan struct{})}
	if !c.forgetDenials {
		s.denials.init()
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.waiters.init()
	s.inbox = newInbox(c.prefix)
	s.nodes.init(s)
	s.telemetry = telemetry.NewStore(c.providers, ScopeName, "redis", operations, func() bool {
		return slices.ContainsFunc(s.nodes.all(), (*node).isDown)
	})
	faults := c.logger.With("store", "redis")
	s.damage = telemetry.NewRepeated(faults, telemetry.DamagedRecord)
	s.misconfigured = telemetry.NewRepeated(faults.With("address", addressOf(client)), "lockkeeper: redis is misconfigured")
	return s, nil
}

// checkClient returns what a store wants to know of its client, or why it can do nothing with it.
func checkClient(client redis.UniversalClient) (poolSize int, readTimeout time.Duration, err error) {
	var obeys bool
	switch client := client.(type) {
	case *redis.Client:
		o := client.Options()
		poolSize, readTimeout, obeys = o.PoolSize, o.ReadTimeout, o.ContextTimeoutEnabled
	case *redis.ClusterClient:
		o := client.Options()
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

// start runs f in the background, and has Close wait for it. If the store is closed it reports false
// instead.
func (s *Store) start(f func()) bool {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.closed.Load() {
		return false
	}
	s.background.Go(f)
	return true
}

// Ping asks Redis whether it is there, even when the store takes it to be down.
func (s *Store) Ping(ctx context.Context) error {
	_, err := call(ctx, s.nodes.whole, opPing, finishing, func(ctx context.Context) (string, error) {
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
func (s *Store) Close() error { return s.hooks.Close(s.closeNow) }

func (s *Store) closeNow() {
	s.closing.Lock()
	s.closed.Store(true)
	s.closing.Unlock()
	close(s.stop)
	s.nodes.stop()
	s.end()
	s.background.Wait()
	s.deadlines.stop()
	s.denials.stop()
	s.telemetry.Close()
}

// bucketTag is what the Redis keys of a key's buckets have in common: a hash tag, and with it a slot of a
// Cluster.
type bucketTag struct {
	text [64 + len(":t:{") + tagSize + len("}")]byte
	size int
}

func (s *Store) tagged(limiter, key string) bucketTag {
	var t bucketTag
	tag := s.hash(limiter, key)
	text := append(append(append(append(t.text[:0], s.config.prefix...), ":t:{"...), tag[:]...), '}')
	t.size = len(text)
	return t
}

// key names the Redis key of a bucket.
func (t *bucketTag) key(bucket string) string {
	if bucket == "" {
		return string(t.text[:t.size])
	}
	return string(t.text[:t.size]) + ":" + bucket
}

// tag hashes the name of a mechanism and a key of it.
func (s *Store) tag(name, key string) string {
	tag := s.hash(name, key)
	return string(tag[:])
}

const tagSize = 22

func (s *Store) hash(name, key string) (tag [tagSize]byte) {
	var room [512]byte // most fit, and then cost nothing
	text := binary.BigEndian.AppendUint64(room[:0], uint64(len(name)))
	text = append(append(text, name...), key...)
	sum := sha256.Sum256(text)
	if len(s.config.secret) > 0 {
		h := hmac.New(sha256.New, s.config.secret)
		h.Write([]byte(string(text))) // a copy, or what is above would cost memory
		copy(sum[:], h.Sum(nil))
	}
	base64.RawURLEncoding.Encode(tag[:], sum[:16])
	return tag
}
