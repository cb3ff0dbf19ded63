package memstore

import (
	"context"
	"hash/maphash"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/expiry"
)

// resourceKey identifies a lock or a semaphore.
type resourceKey struct{ name, key string }

// requestID is the ID of a request, and a hash of its lock or semaphore: long keys are kept once
// for each of those, not for every released ID.
type requestID struct {
	id       string
	resource uint64
}

// resource is a lock or a semaphore.
type resource interface {
	comparable
	// advance applies what has expired. It may drop the resource from its shard.
	advance(now int64)
}

// shardSet has all locks of a store, or all its semaphores, with their requests.
type shardSet[T resource, R any] struct {
	shards     []shard[T, R]
	limit      int64
	requests   atomic.Int64 // held, reserved and queued ones
	tombstones atomic.Int64
	sweeps     atomic.Uint64 // the next shard that a full store sweeps
}

func (a *shardSet[T, R]) init(store *Store, limit int) {
	a.limit = int64(limit)
	a.shards = make([]shard[T, R], min(max(limit/4096, 1), 64))
	for i := range a.shards {
		a.shards[i].init(store, a)
	}
}

// shard holds some of the resources and their requests.
type shard[T resource, R any] struct {
	store     *Store
	all       *shardSet[T, R]
	mu        sync.Mutex
	index     map[resourceKey]int
	order     []named[T]
	sweepNext int // where the next sweep begins
	requests  map[requestID]R
	released  tombstones
}

type named[T resource] struct {
	resourceKey
	resource T
}

func (s *shard[T, R]) init(store *Store, all *shardSet[T, R]) {
	s.store, s.all = store, all
	s.index = make(map[resourceKey]int)
	s.requests = make(map[requestID]R)
	s.released.byID = make(map[requestID]*tombstone)
}

func (s *shard[T, R]) requestID(name, key, id string) requestID {
	return requestID{id, maphash.Comparable(s.store.seed, resourceKey{name, key})}
}

// at returns a resource after its advance, or nil.
func (s *shard[T, R]) at(name, key string, now int64) T {
	k := resourceKey{name, key}
	if i, ok := s.index[k]; ok {
		s.order[i].resource.advance(now)
	}
	return s.find(k)
}

// find returns a resource without an advance, or nil.
func (s *shard[T, R]) find(key resourceKey) (found T) {
	if i, ok := s.index[key]; ok {
		found = s.order[i].resource
	}
	return found
}

func (s *shard[T, R]) add(key resourceKey, r T) {
	s.index[key] = len(s.order)
	s.order = append(s.order, named[T]{key, r})
}

// drop removes a resource without holders and waiters.
func (s *shard[T, R]) drop(key resourceKey, r T) {
	i, ok := s.index[key]
	if !ok || s.order[i].resource != r {
		return
	}
	delete(s.index, key)
	last := len(s.order) - 1
	if i != last {
		s.order[i] = s.order[last]
		s.index[s.order[i].resourceKey] = i
	}
	s.order[last] = named[T]{}
	s.order = s.order[:last]
}

// forget is called for every request that ends.
func (s *shard[T, R]) forget(id requestID) {
	delete(s.requests, id)
	s.all.requests.Add(-1)
}

// addTombstone records that an ID was released, and the reply to the release.
func (s *shard[T, R]) addTombstone(id requestID, held bool, now int64) {
	s.released.add(id, held, now, &s.all.tombstones, s.all.limit)
}

// sweep advances the next n resources.
func (s *shard[T, R]) sweep(n int, now int64) {
	for range min(n, len(s.order)) {
		if s.sweepNext >= len(s.order) {
			s.sweepNext = 0
		}
		if len(s.order) == 0 {
			return
		}
		r := s.order[s.sweepNext].resource
		r.advance(now)
		if s.sweepNext < len(s.order) && s.order[s.sweepNext].resource == r {
			s.sweepNext++ // otherwise another one has taken its place
		}
	}
}

// room takes room for one request; the shard is locked. If there is none, it sweeps the shard and a
// few others.
func (s *shard[T, R]) room(now int64) bool {
	s.sweep(expiry.SweepStep, now)
	a := s.all
	if a.requests.Add(1) <= a.limit {
		return true
	}
	s.sweep(expiry.SweepFull, now)
	for range min(8, len(a.shards)) {
		if a.requests.Load() <= a.limit {
			return true
		}
		other := &a.shards[a.sweeps.Add(1)%uint64(len(a.shards))]
		if other != s && other.mu.TryLock() { // its holder may be waiting for this shard
			other.sweep(expiry.SweepFull, now)
			other.mu.Unlock()
		}
	}
	if a.requests.Load() <= a.limit {
		return true
	}
	a.requests.Add(-1)
	return false
}

// listStates yields the states of all resources with a name for which state returns true. A shard
// is not locked while its states are yielded.
func listStates[T resource, R, S any](
	ctx context.Context, s *Store, all *shardSet[T, R], name string, state func(T, int64) (S, bool),
) iter.Seq2[S, error] {
	return func(yield func(S, error) bool) {
		for i := range all.shards {
			if err := s.ready(ctx); err != nil {
				var none S
				yield(none, err)
				return
			}
			for _, found := range states(&all.shards[i], name, state) {
				if !yield(found, nil) {
					return
				}
			}
		}
	}
}

func states[T resource, R, S any](s *shard[T, R], name string, state func(T, int64) (S, bool)) (found []S) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.store.now()
	for i := len(s.order) - 1; i >= 0; i-- { // backwards, since a removal moves the last one
		if s.order[i].name != name {
			continue
		}
		r := s.order[i].resource
		r.advance(now)
		if one, ok := state(r, now); ok {
			found = append(found, one)
		}
	}
	return found
}
