// Package memstore keeps the state of every mechanism in process memory: for tests, for programs of
// one process, and for limits of a single process. It is the reference for other stores. It uses
// the monotonic clock of the process, so changes of the wall clock do not affect it. Its state ends
// with the process.
package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a store.Store in memory. It starts no goroutine, and its size is bounded:
//   - When it is full of token buckets, it drops one for each new key ([WithMaxBuckets]).
//   - When it is full of records, it drops results of finished operations ([WithMaxRecordBytes]).
//   - It never drops the record of an operation, a held lock or permit, the participants of a
//     latch, a delayed task, a document, or the hold of a bucket. When it is full of those, it refuses
//     new ones with store.ErrFull.
//
// All methods may be called concurrently.
type Store struct {
	start   time.Time
	seed    maphash.Seed
	closed  atomic.Bool
	hooks   hooks.Shutdown
	buckets buckets

	records    []recordShard
	recordRoom recordRoom

	leases leaseShards
	fences fences
	places fences // numbers in queues
	lost   hooks.Listeners

	latches latches
	tasks   tasks

	documents documents

	unobserve func()

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var _ namesake.Store = (*Store)(nil)

var (
	_ store.Store      = (*Store)(nil)
	_ store.Checker    = (*Store)(nil)
	_ store.OneProcess = (*Store)(nil)
)

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	maxBuckets      int
	refuseBuckets   bool
	maxRecordBytes  int
	maxLeases       int
	maxParticipants int
	maxTaskBytes    int
	maxDocBytes     int
	providers       telemetry.Providers
}

// WithMaxBuckets sets how many token buckets in debt the store holds: 1,048,576 by default, about
// 56 bytes each, and the text of a key of more than 16 bytes. It panics if n is not positive.
//
// When as many are in debt, a new key takes the place of another one: of some sixty buckets, chosen
// at random, the one that will be full first is forgotten, and its key may use its whole limit
// again. So a client that sends requests under many keys, once each, displaces keys that have been
// used once, and hardly ever a key that is at its limit. To displace that key, most of the buckets
// must owe more: the client has to use up the limits of about as many keys as the store holds,
// within the time in which they fill. With limits whose burst is one, a single request of a key
// does that: a key at its limit then passes once for about n requests of new keys.
//
// Set n above the number of keys that clients can use in the time in which a bucket fills: by a
// quarter, since each part of the store has its own share of n. Or see [RefuseNewBuckets].
//
// Buckets of calendars, such as of tokenbucket.Daily, take 16 bytes more, and are in debt until the
// end of the period: n must then be above the number of keys in a period. They are forgotten after
// those of rates, the ones that have used the smallest part of their tokens first.
func WithMaxBuckets(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxBuckets: %d is not positive", n))
	}
	return func(c *config) { c.maxBuckets = n }
}

// RefuseNewBuckets makes a store that is full of buckets in debt refuse a new key with
// store.ErrFull, and forget no bucket. A client that can send requests under many keys can then
// cause the refusal of every new key, until buckets are full again.
func RefuseNewBuckets() Option { return func(c *config) { c.refuseBuckets = true } }

// WithMaxRecordBytes sets the maximum memory of the records of operations: 256 MiB by default. A
// record without a result counts 512 bytes. It panics if n is less than that.
//
// When there is no room for a new record, or a result, the store forgets the larger results of the
// scope that has the most bytes of results. Their operations stay finished, as guard.NotRetained.
// Only if that makes no room, it refuses a new operation with store.ErrFull, or does not retain a
// new result.
func WithMaxRecordBytes(n int) Option {
	if n < recordBytes {
		panic(fmt.Sprintf("memstore: WithMaxRecordBytes: %d is less than one record's %d bytes", n, recordBytes))
	}
	return func(c *config) { c.maxRecordBytes = n }
}

// WithMaxLeases sets the maximum number of holds and waiters of all locks and semaphores: 524,288
// by default, about 700 bytes each. It panics if n is not positive.
func WithMaxLeases(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxLeases: %d is not positive", n))
	}
	return func(c *config) { c.maxLeases = n }
}

// WithMaxParticipants sets the maximum number of participants of all latches: 1,048,576 by default,
// about 60 bytes and their names each, and 300 more for each latch. It panics if n is not positive.
func WithMaxParticipants(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("memstore: WithMaxParticipants: %d is not positive", n))
	}
	return func(c *config) { c.maxParticipants = n }
}

// WithMaxTaskBytes sets the maximum memory of delayed tasks: 256 MiB by default. A task counts its
// payload and 512 bytes. A full store refuses a new task with store.ErrFull. It panics if n is less
// than 512.
func WithMaxTaskBytes(n int) Option {
	if n < taskBytes {
		panic(fmt.Sprintf("memstore: WithMaxTaskBytes: %d is less than one task's %d bytes", n, taskBytes))
	}
	return func(c *config) { c.maxTaskBytes = n }
}

// WithMaxDocumentBytes sets the maximum memory of documents: 64 MiB by default. A document counts
// its data, its names and 512 bytes. A full store refuses a new document, and a larger one, with
// store.ErrFull. It panics if n is less than 512.
func WithMaxDocumentBytes(n int) Option {
	if n < documentBytes {
		panic(fmt.Sprintf("memstore: WithMaxDocumentBytes: %d is less than one document's %d bytes", n, documentBytes))
	}
	return func(c *config) { c.maxDocBytes = n }
}

// New returns an empty store.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
func New(opts ...Option) *Store {
	c := config{
		maxBuckets: 1 << 20, maxRecordBytes: 256 << 20, maxLeases: 1 << 19, maxParticipants: 1 << 20,
		maxTaskBytes: 256 << 20, maxDocBytes: 64 << 20,
	}
	option.Apply(&c, opts)
	s := &Store{namesakes: new(namesakes), start: time.Now(), seed: maphash.MakeSeed()}
	s.buckets.init(c.maxBuckets, c.refuseBuckets)
	s.records = make([]recordShard, min(max(c.maxRecordBytes>>22, 1), 64))
	s.recordRoom.max = int64(c.maxRecordBytes)
	for i := range s.records {
		s.records[i].init(&s.recordRoom, c.maxRecordBytes/len(s.records)/recordBytes)
	}
	s.fences.epoch = s.start.UnixMicro()
	s.places.epoch = s.fences.epoch
	s.leases.init(s, c.maxLeases)
	s.latches.init(c.maxParticipants)
	s.tasks.init(c.maxTaskBytes)
	s.documents.init(c.maxDocBytes, s.fences.epoch)
	s.unobserve = s.observeSizes(c.providers)
	return s
}

// OneProcess implements store.OneProcess.
func (*Store) OneProcess() {}

// Check implements store.Checker. The only finding is that the state is this process's.
func (s *Store) Check(context.Context) ([]store.Finding, error) {
	if s.closed.Load() {
		return nil, store.ErrClosed
	}
	return []store.Finding{{
		Found:   "the state is in the memory of this process",
		Weakens: "other processes have locks, limits, records and tasks of their own, and a restart forgets all of them",
		Remedy:  "Use core/redisstore or core/pgstore where several processes share them, or they must survive a restart",
	}}, nil
}

// Ping returns nil, store.ErrClosed, or the context's error.
func (s *Store) Ping(ctx context.Context) error { return s.ready(ctx) }

// AtShutdown implements store.Hooks.
func (s *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return s.hooks.AtShutdown(f)
}

// Shutdown implements store.Store.
func (s *Store) Shutdown(ctx context.Context) error { return s.hooks.Run(ctx) }

// Close implements store.Store.
func (s *Store) Close() error {
	return s.hooks.Close(func() {
		s.closed.Store(true)
		s.unobserve()
	})
}

// acceptsNew returns the error of calls that begin something or wait, which fail from Shutdown on.
func (s *Store) acceptsNew(ctx context.Context) error {
	if s.hooks.Begun() {
		return store.ErrClosed
	}
	return s.ready(ctx)
}

func (s *Store) ready(ctx context.Context) error {
	if s.closed.Load() {
		return store.ErrClosed
	}
	return ctx.Err()
}

// now returns the time of the store's clock in µs.
func (s *Store) now() int64 { return int64(time.Since(s.start) / time.Microsecond) }

// micros returns a duration in µs, rounded up, so that a hold does not end before its holder's
// deadline.
func micros(d time.Duration) int64 {
	m := d.Microseconds()
	if time.Duration(m)*time.Microsecond < d {
		m++
	}
	return m
}

// duration returns a number of µs as a duration.
func duration(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

func shardOf[S any](s *Store, shards []S, key string) *S {
	return &shards[maphash.String(s.seed, key)%uint64(len(shards))]
}
