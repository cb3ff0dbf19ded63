package semaphore

import (
	"container/list"
	"context"
	"iter"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// localStore keeps the permits of [Semaphore.PerInstance]: in the process that uses them, so that
// nothing is lost or late, and nothing expires. It is one Semaphore's own, and does not look at names.
type localStore struct {
	ids atomic.Uint64

	mu       sync.Mutex
	keys     map[string]*localKey // those in use or waited for
	requests map[string]*localRequest
	fence    int64
}

var _ store.Permits = (*localStore)(nil)

func newLocalStore() *localStore {
	return &localStore{keys: make(map[string]*localKey), requests: make(map[string]*localRequest)}
}

// newID returns an ID that is never used again.
func (s *localStore) newID() string { return strconv.FormatUint(s.ids.Add(1), 36) }

// localKey is one semaphore. Its store's mutex guards it, and its requests.
type localKey struct {
	key     string
	permits []*localRequest
	first   [1]*localRequest // where they are while there is but one
	inUse   int
	queue   list.List // of *localRequest
	barging int       // of the queue
}

// localRequest is a request for a permit, and then the permit.
type localRequest struct {
	of       *localKey
	weight   int
	capacity int
	barging  bool
	holder   string
	fence    int64         // 0 until it is granted
	index    int           // in of.permits
	place    *list.Element // in of.queue
	over     chan struct{} // closed when it is granted or withdrawn, if it was queued
}

func (k *localKey) fits(r *localRequest) bool { return r.weight <= r.capacity-k.inUse }

// AcquirePermits implements store.Permits.
func (s *localStore) AcquirePermits(_ context.Context, req store.PermitRequest) (store.PermitReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.requests[req.ID]; r != nil {
		r.capacity = req.Capacity
		s.serve(r.of)
		return r.reply(), nil
	}
	k, used := s.keys[req.Key]
	if !used {
		k = &localKey{key: req.Key}
		k.permits = k.first[:0]
	}
	r := &localRequest{of: k, weight: req.Weight, capacity: req.Capacity, barging: req.Barging, holder: req.Holder}
	switch {
	case k.fits(r) && (req.Barging || k.queue.Len() == 0):
		s.grant(r)
	case !req.Queue:
		return store.PermitReply{Outcome: store.Taken, InUse: k.inUse, Waiting: k.queue.Len()}, nil
	case req.MaxWaiting > 0 && k.queue.Len() >= req.MaxWaiting:
		return store.PermitReply{Outcome: store.Taken, InUse: k.inUse, Waiting: k.queue.Len(), QueueFull: true}, nil
	default:
		r.over = make(chan struct{})
		r.place = k.queue.PushBack(r)
		if req.Barging {
			k.barging++
		}
	}
	s.requests[req.ID] = r
	if !used {
		s.keys[req.Key] = k
	}
	return r.reply(), nil
}

func (r *localRequest) reply() store.PermitReply {
	if r.fence != 0 {
		return store.PermitReply{Outcome: store.Granted, Grant: store.Grant{Fence: r.fence}}
	}
	return store.PermitReply{Outcome: store.Queued, InUse: r.of.inUse, Waiting: r.of.queue.Len() - 1}
}

// grant makes a request, which is not in the queue, a permit.
func (s *localStore) grant(r *localRequest) {
	s.fence++
	r.fence = s.fence
	r.index = len(r.of.permits)
	r.of.permits = append(r.of.permits, r)
	r.of.inUse += r.weight
}

// leave takes a request out of the queue.
func (k *localKey) leave(r *localRequest) {
	k.queue.Remove(r.place)
	r.place = nil
	if r.barging {
		k.barging--
	}
	close(r.over)
}

// serve grants what is queued, from its head, and beyond the first that does not fit what may barge.
// It ends every change: a key of which nothing is left goes.
func (s *localStore) serve(k *localKey) {
	inOrder := true
	for e := k.queue.Front(); e != nil && (inOrder || k.barging > 0); {
		r := e.Value.(*localRequest)
		e = e.Next()
		if k.fits(r) && (inOrder || r.barging) {
			k.leave(r)
			s.grant(r)
		} else {
			inOrder = false
		}
	}
	if len(k.permits) == 0 && k.queue.Len() == 0 {
		delete(s.keys, k.key)
	}
}

// AwaitPermits implements store.Permits.
func (s *localStore) AwaitPermits(ctx context.Context, req store.PermitRequest) (store.Grant, error) {
	s.mu.Lock()
	r := s.requests[req.ID]
	s.mu.Unlock()
	if r == nil {
		return store.Grant{}, store.ErrWithdrawn
	}
	if r.over != nil {
		select {
		case <-r.over:
		case <-ctx.Done():
			return store.Grant{}, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.fence == 0 {
		return store.Grant{}, store.ErrWithdrawn
	}
	return store.Grant{Fence: r.fence}, nil
}

// RenewPermits implements store.Permits.
func (s *localStore) RenewPermits(_ context.Context, reqs []store.PermitRef) ([]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make([]bool, len(reqs))
	for i, req := range reqs {
		r := s.requests[req.ID]
		held[i] = r != nil && r.fence != 0
	}
	return held, nil
}

// ReleasePermits implements store.Permits.
func (s *localStore) ReleasePermits(_ context.Context, reqs []store.PermitRef) ([]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make([]bool, len(reqs))
	for i, req := range reqs {
		r := s.requests[req.ID]
		if r == nil {
			continue
		}
		delete(s.requests, req.ID)
		k := r.of
		if held[i] = r.fence != 0; held[i] {
			last := len(k.permits) - 1
			k.permits[r.index] = k.permits[last]
			k.permits[r.index].index = r.index
			k.permits[last] = nil
			k.permits = k.permits[:last]
			k.inUse -= r.weight
		} else {
			k.leave(r)
		}
		s.serve(k)
	}
	return held, nil
}

// InspectPermits implements store.Permits.
func (s *localStore) InspectPermits(_ context.Context, _, key string) (store.SemaphoreState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.keys[key]; k != nil {
		return k.state(), nil
	}
	return store.SemaphoreState{Key: key}, nil
}

func (k *localKey) state() store.SemaphoreState {
	state := store.SemaphoreState{Key: k.key, InUse: k.inUse, Waiting: k.queue.Len()}
	for _, r := range k.permits[:min(len(k.permits), store.MaxHolders)] {
		state.Holders = append(state.Holders, store.PermitHolder{Fence: r.fence, Weight: r.weight, Meta: r.holder})
	}
	return state
}

// ListPermits implements store.Permits.
func (s *localStore) ListPermits(context.Context, string) iter.Seq2[store.SemaphoreState, error] {
	return func(yield func(store.SemaphoreState, error) bool) {
		s.mu.Lock()
		states := make([]store.SemaphoreState, 0, len(s.keys))
		for _, k := range s.keys {
			states = append(states, k.state())
		}
		s.mu.Unlock()
		for _, state := range states {
			if !yield(state, nil) {
				return
			}
		}
	}
}

// AtShutdown implements store.Permits: there is none, it goes with its Semaphore.
func (s *localStore) AtShutdown(func(context.Context) error) (remove func()) { return func() {} }
