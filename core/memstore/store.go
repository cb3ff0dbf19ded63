// Package memstore keeps the state of every mechanism in the memory of the process: the store for
// tests, for programs of one process, and for limits that each process has for itself. It is the
// reference that other stores are held against.
//
// Its clock is the process's monotonic one, so changes of the wall clock do not touch it. Nothing
// survives the process.
package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/internal/listeners"
	"github.com/lockkeeper/lockkeeper/internal/outage"
	"github.com/lockkeeper/lockkeeper/internal/shutdown"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a core.Store in memory. It starts no goroutine, and its size is bounded: when it is
// full it refuses what is new with core.ErrFull. To make room it never forgets a bucket in debt (unless
// told so by [EvictLeastIndebted]), the record of an operation, a lock or a permit that is held, or the participants of a latch. All methods
// may be called concurrently.
type Store struct {
	start   time.Time
	seed    maphash.Seed
	closed  atomic.Bool
	done    chan struct{} // closed with the store
	hooks   shutdown.Hooks
	buckets buckets
	records []recordShard

	locks  resources[*lockState, *request]
	fences fences
	lost   listeners.Listeners

	permits resources[*semaphoreState, *permit]
	latches latches

	unobserve func()
}

var _ core.Store = (*Store)(nil)

// Option is an optional setting of [New].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	maxBuckets      int
	evictBuckets    bool
	maxRecordBytes  int
	maxLocks        int
	maxPermits      int
	maxParticipants int
	providers       telemetry.Providers
}

// WithMaxBuckets sets how many token buckets in debt the store holds: a million if not set, about
// 50 bytes and the text of its key each. When as many are in debt, a key that has none is refused with
// core.ErrFull, or see [EvictLeastIndebted]. It panics if n is not positive.
func WithMaxBuckets(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxBuckets: %d is not positive", n))
	}
	return optionFunc(func(c *config) { c.maxBuckets = n })
}

// EvictLeastIndebted has a store that is full of buckets forget one for the sake of a new key, instead of
// refusing that key: the one that owes the least time of some sixty that it looks at. Whoever can send
// requests under many keys can then have a bucket forgotten, and with it what its key has used up.
func EvictLeastIndebted() Option { return optionFunc(func(c *config) { c.evictBuckets = true }) }

// WithMaxRecordBytes sets how much memory the records of operations may take: 256 MiB if not set.
// A record without a result counts 512 bytes. It panics if n is less than that.
func WithMaxRecordBytes(n int) Option {
	if n < recordBytes {
		panic(fmt.Sprintf("memstore: WithMaxRecordBytes: %d is less than one record's %d bytes", n, recordBytes))
	}
	return optionFunc(func(c *config) { c.maxRecordBytes = n })
}

// WithMaxLocks sets how many holds of locks, and requests that wait for one, the store has at a
// time: 262,144 if not set, about 700 bytes each. Of what was released in the last minute it
// remembers as many again, about 200 bytes each. It panics if n is not positive.
func WithMaxLocks(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxLocks: %d is not positive", n))
	}
	return optionFunc(func(c *config) { c.maxLocks = n })
}

// WithMaxPermits sets how many permits of semaphores, and requests that wait for one, the store has
// at a time: 262,144 if not set, about 750 bytes each. Of what was released in the last minute it
// remembers as many again, about 200 bytes each. It panics if n is not positive.
func WithMaxPermits(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxPermits: %d is not positive", n))
	}
	return optionFunc(func(c *config) { c.maxPermits = n })
}

// WithMaxParticipants sets how many participants all latches of the store have at a time: a million
// if not set, about 60 bytes and their names each, and 300 more for each latch. It panics if n is not
// positive.
func WithMaxParticipants(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxParticipants: %d is not positive", n))
	}
	return optionFunc(func(c *config) { c.maxParticipants = n })
}

// New returns an empty store.
func New(opts ...Option) *Store {
	c := config{
		maxBuckets: 1 << 20, maxRecordBytes: 256 << 20, maxLocks: 1 << 18, maxPermits: 1 << 18, maxParticipants: 1 << 20,
	}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	s := &Store{start: time.Now(), seed: maphash.MakeSeed(), done: make(chan struct{})}
	s.buckets.init(c.maxBuckets, c.evictBuckets)
	s.records = make([]recordShard, min(max(c.maxRecordBytes>>22, 1), 64))
	for i := range s.records {
		s.records[i].init(c.maxRecordBytes / len(s.records))
	}
	s.fences.epoch = s.start.UnixMicro()
	s.locks.init(s, c.maxLocks)
	s.permits.init(s, c.maxPermits)
	s.latches.init(c.maxParticipants)
	s.unobserve = s.observeSizes(c.providers)
	return s
}

// Ping returns nil, core.ErrClosed, or the context's error.
func (s *Store) Ping(ctx context.Context) error { return s.ready(ctx) }

// AtShutdown implements guard.Store, lock.Store, and semaphore.Store.
func (s *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return s.hooks.AtShutdown(f)
}

// Shutdown finishes what mechanisms have pending, until ctx ends. Call it after the server's own
// shutdown and before Close.
func (s *Store) Shutdown(ctx context.Context) error { return s.hooks.Run(ctx) }

// Close ends the store: from then on every method returns core.ErrClosed.
func (s *Store) Close() error {
	if !s.closed.Swap(true) {
		close(s.done)
		s.unobserve()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // nothing can be finished any more; whoever waits for that shall know
	_ = s.hooks.Run(ctx)
	return nil
}

func (s *Store) ready(ctx context.Context) error {
	if s.closed.Load() {
		return outage.ErrClosed
	}
	return ctx.Err()
}

// now is the store's clock, in µs.
func (s *Store) now() int64 { return int64(time.Since(s.start) / time.Microsecond) }

func shardOf[S any](s *Store, shards []S, key string) *S {
	return &shards[maphash.String(s.seed, key)%uint64(len(shards))]
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }
