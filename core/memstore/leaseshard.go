package memstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// leaseKey is the name of a mechanism, and a key.
type leaseKey struct{ name, key string }

// leaseID identifies a request.
type leaseID struct {
	leaseKey
	id string
}

// leaseShards have all leases of a store.
type leaseShards struct {
	shards   []leaseShard
	limit    int64
	requests atomic.Int64  // that hold or wait
	sweeps   atomic.Uint64 // the next shard that a full store sweeps
}

func (a *leaseShards) init(s *Store, limit int) {
	a.limit = int64(limit)
	a.shards = make([]leaseShard, min(max(limit/4096, 1), 64))
	for i := range a.shards {
		a.shards[i] = leaseShard{
			store: s, keys: make(map[leaseKey]*leaseState), requests: make(map[leaseID]*lease),
			withdrawn: expiry.NewTable[string, struct{}](maxWithdrawn, nil),
		}
	}
}

// leaseShard has some of the keys, with their requests.
type leaseShard struct {
	store     *Store
	mu        sync.Mutex
	keys      map[leaseKey]*leaseState // that are held or waited for
	order     []*leaseState            // the same, for sweeps
	sweepNext int                      // where the next sweep begins
	requests  map[leaseID]*lease
	withdrawn expiry.Table[string, struct{}] // IDs of requests that were released before a call awaited them
}

const (
	// maxWithdrawn bounds the IDs of a shard, and withdrawnFor is how long they are kept.
	maxWithdrawn = 1024
	withdrawnFor = time.Minute
)

// isWithdrawn reports whether a request was released before a call awaited it.
func (s *leaseShard) isWithdrawn(id string, now int64) bool {
	return s.withdrawn.Len() > 0 && s.withdrawn.Get(id, now) != nil
}

// recordWithdrawal records the release of a request for a call that is about to await it.
func (s *leaseShard) recordWithdrawal(id string, now int64) {
	if !s.isWithdrawn(id, now) && s.withdrawn.Room(1, now) {
		s.withdrawn.Add(id, struct{}{}, now+micros(withdrawnFor), now)
	}
}

// lockLease locks the shard of a key, and returns the key after its advance.
func (s *Store) lockLease(name, key string) (l *leaseState, now int64) {
	shard := shardOf(s, s.leases.shards, key)
	shard.mu.Lock()
	now = s.now()
	return shard.at(name, key, now), now
}

// unlock ends the use of a key.
func (l *leaseState) unlock() {
	l.settle()
	l.shard.mu.Unlock()
}

// at returns a key after its advance. A key without requests is not in the shard.
func (s *leaseShard) at(name, key string, now int64) *leaseState {
	l := s.keys[leaseKey{name, key}]
	if l == nil {
		l = &leaseState{shard: s, leaseKey: leaseKey{name, key}}
	}
	l.advance(now)
	return l
}

func (s *leaseShard) add(l *leaseState) {
	if s.keys[l.leaseKey] != l {
		s.keys[l.leaseKey], l.index = l, len(s.order)
		s.order = append(s.order, l)
	}
}

func (s *leaseShard) drop(l *leaseState) {
	if s.keys[l.leaseKey] != l {
		return
	}
	delete(s.keys, l.leaseKey)
	last := len(s.order) - 1
	s.order[l.index] = s.order[last]
	s.order[l.index].index = l.index
	s.order[last] = nil
	s.order = s.order[:last]
}

// sweep advances the next n keys.
func (s *leaseShard) sweep(n int, now int64) {
	for range min(n, len(s.order)) {
		l := s.order[s.sweepNext%len(s.order)]
		if l.advance(now); s.keys[l.leaseKey] == l {
			s.sweepNext = l.index + 1 // otherwise another one has taken its place
		}
	}
}

// room takes room for one request; the shard is locked. If there is none, it sweeps the shard and a
// few others.
func (s *leaseShard) room(now int64) bool {
	s.sweep(expiry.SweepStep, now)
	a := &s.store.leases
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

// states returns the states of all keys of a name.
func (s *leaseShard) states(name string) (found []store.LeaseState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.store.now()
	for i := len(s.order) - 1; i >= 0; i-- { // backwards, since a removal moves the last one
		if l := s.order[i]; l.name == name {
			if l.advance(now); s.keys[l.leaseKey] == l {
				found = append(found, l.state(now))
			}
		}
	}
	return found
}
