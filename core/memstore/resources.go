package memstore

import (
	"context"
	"hash/maphash"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/internal/expiry"
)

// resourceKey names a lock or a semaphore.
type resourceKey struct{ name, key string }

// requestID is the ID of a request, and a hash of what it is for: long keys are kept once for each
// lock or semaphore, not for every ID that was released.
type requestID struct {
	id       string
	resource uint64
}

// resource is a lock or a semaphore.
type resource interface {
	comparable
	// advance makes happen what time has done to it. It may drop it from its shard.
	advance(now int64)
}

// resources are all locks of a store, or all its semaphores, with the requests for them.
type resources[T resource, R any] struct {
	shards     []shard[T, R]
	limit      int64
	requests   atomic.Int64 // held, reserved and queued ones
	tombstones atomic.Int64
	sweeps     atomic.Uint64 // which shard a full store sweeps next
}

func (a *resources[T, R]) init(store *Store, limit int) {
	a.limit = int64(limit)
	a.shards = make([]shard[T, R], min(max(limit/4096, 1), 64))
	for i := range a.shards {
		a.shards[i].init(store, a)
	}
}

// shard holds some of the resources, with everything about each of them.
type shard[T resource, R any] struct {
	store    *Store
	all      *resources[T, R]
	mu       sync.Mutex
	index    map[resourceKey]int
	order    []named[T]
	hand     int // where the sweep goes on
	requests map[requestID]R
	released tombstones
}

type named[T resource] struct {
	resourceKey
	resource T
}

func (s *shard[T, R]) init(store *Store, all *resources[T, R]) {
	s.store, s.all = store, all
	s.index = make(map[resourceKey]int)
	s.requests = make(map[requestID]R)
	s.released.byID = make(map[requestID]*tombstone)
}

func (s *shard[T, R]) requestID(name, key, id string) requestID {
	return requestID{id, maphash.Comparable(s.store.seed, resourceKey{name, key})}
}

// at returns a resource as time has left it, or nil.
func (s *shard[T, R]) at(name, key string, now int64) T {
	k := resourceKey{name, key}
	if i, ok := s.index[k]; ok {
		s.order[i].resource.advance(now)
	}
	return s.find(k)
}

// find returns a resource as it is, or nil.
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

// drop forgets a resource that nobody has or wants.
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

// forget is called for every request that goes.
func (s *shard[T, R]) forget(id requestID) {
	delete(s.requests, id)
	s.all.requests.Add(-1)
}

// bury remembers that an ID was released, and what the release answered.
func (s *shard[T, R]) bury(id requestID, held bool, now int64) {
	s.released.add(id, held, now, &s.all.tombstones, s.all.limit)
}

// sweep looks at n resources, a few at a time as in a table.
func (s *shard[T, R]) sweep(n int, now int64) {
	for range min(n, len(s.order)) {
		if s.hand >= len(s.order) {
			s.hand = 0
		}
		if len(s.order) == 0 {
			return
		}
		r := s.order[s.hand].resource
		r.advance(now)
		if s.hand < len(s.order) && s.order[s.hand].resource == r {
			s.hand++ // otherwise another takes its place, and is next
		}
	}
}

// room takes room for one request; the shard is locked. Where there is none, it looks for what has
// expired in the shard and in a few others.
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
		if other != s && other.mu.TryLock() { // whoever has it may be waiting for this shard
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

// listStates yields what state says of all resources of a name, but for those where it answers false. A
// shard is not locked while its states are yielded.
func listStates[T resource, R, S any](
	ctx context.Context, s *Store, all *resources[T, R], name string, state func(T, int64) (S, bool),
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
