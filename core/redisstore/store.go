// Package redisstore keeps the state of every mechanism on Redis 6.2 or later, or on a server that
// is compatible with it: a single one, behind Sentinel, or a Cluster.
//
// Every step is one script that runs on the server, by the server's clock. Keys are hashed before
// they are sent, and every key that the store writes expires.
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
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/internal/shutdown"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a core.Store on Redis. All methods may be called concurrently.
//
// No call waits for Redis longer than the store's own deadline ([WithTimeout]), also where the client's are
// longer, and none takes longer than its caller's context. Calls that are made while others are under way
// go together: decisions of token buckets in one script call, everything else in a pipeline. In a burst, a
// call for a lock, a permit or an operation may so have to wait for its turn, which does not count while
// Redis answers others, for up to three times the deadline; if Redis answers nobody, the call fails within
// one and a half times the deadline.
//
// Give the store a client whose ContextTimeoutEnabled is set: a call of its own then runs in its caller's
// goroutine, which takes about half as long. A context that is canceled while Redis is silent is then
// noticed at the next deadline, the store's or its own.
//
// When several calls in a row fail, the store is taken to be down: calls fail at once, and a PING every 250 ms
// finds out when it is back. Only calls that finish what was begun are tried all the same.
//
// A store that has been asked for a lock keeps one connection for the channel on which it hears of
// grants, "lk:inbox:" and a random text. Where an ACL forbids that, or scripts may not PUBLISH, a
// lock takes up to a second more to change hands.
type Store struct {
	client  redis.UniversalClient
	config  config
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	hooks   shutdown.Hooks

	loading      sync.Mutex
	nextLoad     time.Time   // no earlier; loading guards it
	loaded       atomic.Bool // the server has the scripts
	plainScripts atomic.Bool // the server is older than 7
	safe         atomic.Bool // the server evicts nothing

	// orphans are calls whose callers have left, each of which may keep a connection: at most half
	// of the pool for ordinary ones. Finishing ones have a quarter of their own, since an outage
	// uses up the other first.
	orphans    [2]atomic.Int64
	maxOrphans [2]int64

	departed atomic.Int64 // callers in a row that have left, and nothing was heard of the server
	asking   atomic.Bool  // whether it is there
	deaf     atomic.Bool  // it did not answer that

	keepsDeadlines bool // the client does, of a context
	deadlines      deadlines

	charges      *lanes[*charge]
	spareCharges sync.Pool // of *charge that have been answered
	steps        *lanes[*companion]
	spareSteps   sync.Pool   // of *companion that have been answered
	mapped       atomic.Bool // the client knows the masters of its Cluster
	denials      denials

	telemetry *telemetry.Store
	damage    *telemetry.Damage

	waiters waiters
	latches latches
	inbox   *inbox

	closing    sync.Mutex // makes closed and background change together
	closed     atomic.Bool
	stop       chan struct{}
	life       context.Context // ends when stop is closed
	end        context.CancelFunc
	background sync.WaitGroup
}

var _ core.Store = (*Store)(nil)

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

// WithTimeout sets the store's own deadline for each call: 250 ms if not set, 1 ms to 1 min. That is how long
// Redis may be silent, or how long it takes to get one of the client's connections, or to make one. So set
// more for a server that is far away: a connection takes three round trips.
func WithTimeout(d time.Duration) Option { return optionFunc(func(c *config) { c.timeout = d }) }

// WithSecret has the keys of token buckets and locks hashed by HMAC under this secret, so that nobody
// who reads the database can test guesses of addresses or user names against them. (Operations have
// guard.WithSecret.) Every process needs the same one.
//
// Without it the database has the text of the keys of locks that are held or waited for. With it
// ListLocks cannot tell them: the Key of a lock.State is then the hash.
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

// New returns a store on client, which stays the caller's to close, after the store. It talks to
// nobody yet.
//
// It returns an error for a nil client or an option out of its range. It logs a warning if the
// client waits for replies for more than a second, since a call that nobody waits for any more
// keeps its connection for that long.
func New(client redis.UniversalClient, opts ...Option) (*Store, error) {
	if client == nil || reflect.ValueOf(client).Kind() == reflect.Pointer && reflect.ValueOf(client).IsNil() {
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
	poolSize, readTimeout := clientLimits(client)
	if err := c.checkAcks(readTimeout); err != nil {
		return nil, err
	}
	s := &Store{client: client, keepsDeadlines: keepsDeadlines(client), config: c, stop: make(chan struct{})}
	if !c.forgetDenials {
		s.denials = newDenials()
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.waiters.init()
	s.inbox = newInbox(c.prefix)
	s.breaker = s.newBreaker()
	s.telemetry = telemetry.NewStore(c.providers, ScopeName, "redis", operations, func() bool {
		return s.breaker.State() != gobreaker.StateClosed
	})
	s.damage = telemetry.NewDamage(c.logger.With("store", "redis"))
	s.maxOrphans = [2]int64{ordinary: int64(max(poolSize/2, 1)), finishing: int64(max(poolSize/4, 1))}
	s.charges, s.steps = newCharges(s), newSteps(s)
	if readTimeout > time.Second || readTimeout <= 0 {
		c.logger.Warn("lockkeeper: the Redis client's ReadTimeout is above 1s, or there is none; set it to about the store's own timeout",
			"read_timeout", readTimeout, "store_timeout", c.timeout)
	}
	return s, nil
}

// clientLimits returns the size of a client's pool and how long it waits for a reply: for ever, if
// that is not positive.
func clientLimits(client redis.UniversalClient) (poolSize int, readTimeout time.Duration) {
	switch client := client.(type) {
	case *redis.Client:
		return client.Options().PoolSize, client.Options().ReadTimeout
	case *redis.ClusterClient:
		return client.Options().PoolSize, client.Options().ReadTimeout
	case *redis.Ring:
		return client.Options().PoolSize, client.Options().ReadTimeout
	}
	return 10, time.Second // nothing is known of it
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
	_, err := call(ctx, s, opPing, finishing, func(ctx context.Context) (string, error) {
		return s.client.Ping(ctx).Result()
	})
	return err
}

// AtShutdown implements guard.Store.
func (s *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return s.hooks.AtShutdown(f)
}

// Shutdown finishes what mechanisms have pending, until ctx ends. Call it after the server's own
// shutdown and before Close.
func (s *Store) Shutdown(ctx context.Context) error { return s.hooks.Run(ctx) }

// Close ends the store: from then on every method returns core.ErrClosed. It does not close the
// client.
func (s *Store) Close() error {
	s.closing.Lock()
	first := s.closed.CompareAndSwap(false, true)
	s.closing.Unlock()
	if !first {
		return nil
	}
	close(s.stop)
	s.end()
	s.background.Wait()
	s.deadlines.stop()
	s.telemetry.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing can be finished any more; whoever waits for that shall know
	_ = s.hooks.Run(ctx)
	return nil
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
