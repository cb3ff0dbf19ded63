package memstore

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// withdrawnFor is for how long a delayed request of a released ID is refused.
const withdrawnFor = int64(time.Minute / time.Microsecond)

type lockKey struct{ name, key string }

// requestID is the ID of a request, and a hash of its lock: long keys are kept once for each lock,
// not for every ID that was released.
type requestID struct {
	id   string
	lock uint64
}

// lockShard holds some of the locks, with everything about each of them.
type lockShard struct {
	store    *Store
	mu       sync.Mutex
	locks    map[lockKey]*lockState
	order    []*lockState // the locks again, for the sweep
	hand     int          // where the sweep goes on
	requests map[requestID]*request
	released tombstones
}

func (s *lockShard) init(store *Store) {
	s.store = store
	s.locks = make(map[lockKey]*lockState)
	s.requests = make(map[requestID]*request)
	s.released.byID = make(map[requestID]*tombstone)
}

func (s *lockShard) requestID(name, key, id string) requestID {
	return requestID{id, maphash.Comparable(s.store.seed, lockKey{name, key})}
}

// at returns the lock as time has left it, or nil.
func (s *lockShard) at(name, key string, now int64) *lockState {
	l := s.locks[lockKey{name, key}]
	if l == nil {
		return nil
	}
	l.advance(now)
	return s.locks[l.key]
}

// acquire is AcquireLock. It returns the request too if it is queued.
func (s *lockShard) acquire(req lock.AcquireRequest, now int64) (lock.AcquireReply, *request, error) {
	id := s.requestID(req.Name, req.Key, req.ID)
	if s.released.get(id, now) != nil {
		return lock.AcquireReply{Outcome: lock.Withdrawn}, nil, nil
	}
	l := s.at(req.Name, req.Key, now)
	if r := s.requests[id]; r != nil && r.stage == holding && !r.held(now) {
		// It has expired and is in its delay. This is another request, which need not wait for that.
		l.remove(r)
		l.admit(now)
		l.settle()
		l = s.locks[lockKey{req.Name, req.Key}]
	}
	if l != nil {
		defer l.settle()
	}
	if r := s.requests[id]; r != nil { // sent twice
		switch r.stage {
		case queued:
			l.keepPlace(r, now)
			return l.refusal(lock.Queued, now), r, nil
		case reserved:
			l.hold(r, now)
		}
		return lock.AcquireReply{Outcome: lock.Granted, Grant: r.grant}, nil, nil
	}
	free := l == nil || l.queue.Len() == 0 && l.admits(req.Shared)
	if !free && !req.Queue {
		return l.refusal(lock.Taken, now), nil, nil
	}
	s.sweep(sweepStep, now)
	if !s.store.roomForRequest(s, now) {
		return lock.AcquireReply{}, nil, outage.ErrFull
	}
	if l == nil {
		l = s.newLock(lockKey{req.Name, req.Key})
	}
	r := &request{id: id, ask: req, of: l, shared: req.Shared, sleeps: never}
	s.requests[id] = r
	if !free {
		l.enqueue(r, now)
		return l.refusal(lock.Queued, now), r, nil
	}
	l.hold(r, now)
	return lock.AcquireReply{Outcome: lock.Granted, Grant: r.grant}, nil, nil
}

func (s *lockShard) newLock(key lockKey) *lockState {
	l := &lockState{shard: s, key: key, soonest: never, index: len(s.order)}
	s.locks[key] = l
	s.order = append(s.order, l)
	return l
}

// forget is called for every request that goes.
func (s *lockShard) forget(r *request) {
	delete(s.requests, r.id)
	s.store.requests.Add(-1)
}

// drop forgets a lock that nobody has or wants.
func (s *lockShard) drop(l *lockState) {
	if s.locks[l.key] != l {
		return
	}
	delete(s.locks, l.key)
	last := len(s.order) - 1
	s.order[l.index] = s.order[last]
	s.order[l.index].index = l.index
	s.order[last] = nil
	s.order = s.order[:last]
}

// sweep looks at n locks, a few at a time as in a table.
func (s *lockShard) sweep(n int, now int64) {
	for range min(n, len(s.order)) {
		if s.hand >= len(s.order) {
			s.hand = 0
		}
		if len(s.order) == 0 {
			return
		}
		l := s.order[s.hand]
		l.advance(now)
		if s.hand < len(s.order) && s.order[s.hand] == l {
			s.hand++ // otherwise another lock takes its place, and is next
		}
	}
}

// roomForRequest takes room for one request, whose shard is locked. A full store looks for what
// has expired in that shard and in a few others.
func (s *Store) roomForRequest(shard *lockShard, now int64) bool {
	if s.requests.Add(1) <= s.maxRequests {
		return true
	}
	shard.sweep(sweepFull, now)
	for range min(8, len(s.locks)) {
		if s.requests.Load() <= s.maxRequests {
			return true
		}
		other := &s.locks[s.sweeps.Add(1)%uint64(len(s.locks))]
		if other != shard && other.mu.TryLock() { // whoever has it may be waiting for this shard
			other.sweep(sweepFull, now)
			other.mu.Unlock()
		}
	}
	if s.requests.Load() <= s.maxRequests {
		return true
	}
	s.requests.Add(-1)
	return false
}

// tombstones remember which IDs were released, for a minute. When the store has as many as it may
// have requests, the oldest go early.
type tombstones struct {
	byID        map[requestID]*tombstone
	first, last *tombstone // in order of age
}

type tombstone struct {
	id      requestID
	held    bool // what the release answered
	expires int64
	next    *tombstone
}

func (t *tombstones) get(id requestID, now int64) *tombstone {
	if found := t.byID[id]; found != nil && now < found.expires {
		return found
	}
	return nil
}

func (t *tombstones) add(id requestID, held bool, now int64, count *atomic.Int64, limit int64) {
	for range sweepStep {
		if t.first != nil && t.first.expires <= now {
			t.removeFirst(count)
		}
	}
	if count.Add(1) > limit && t.first != nil {
		t.removeFirst(count)
	}
	added := &tombstone{id: id, held: held, expires: now + withdrawnFor}
	if t.last == nil {
		t.first = added
	} else {
		t.last.next = added
	}
	t.last = added
	t.byID[id] = added
}

func (t *tombstones) removeFirst(count *atomic.Int64) {
	old := t.first
	t.first = old.next
	if t.first == nil {
		t.last = nil
	}
	if t.byID[old.id] == old { // not one that was released again after it expired
		delete(t.byID, old.id)
	}
	count.Add(-1)
}
