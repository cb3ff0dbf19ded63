package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// requests are the requests of this process that hold, wait, or were withdrawn lately, by ID.
type requests struct {
	mu      sync.Mutex
	byID    map[string]*request
	sweepAt int // the size at which expired ones are removed
}

type request struct {
	hold       *hold // nil without one
	grant      store.Grant
	withdrawn  bool
	cancelWait context.CancelCauseFunc // during AwaitLease
	expires    time.Time
}

// hold is a hold on the members. They do not have the IDs of requests that wait: every attempt of a
// waiter has its own.
type hold struct {
	id    string
	asked []chan struct{} // by member: closed when its AcquireLease has returned; nil if none was called

	mu     sync.Mutex
	fences []int64 // by member; zero of one that has not granted it
}

func newHold(id string, members int) *hold { return &hold{id: id, fences: make([]int64, members)} }

// settle waits until a member has returned from AcquireLease, since a release must not overtake it,
// or until ctx ends. Then late is called when the member has returned.
func (h *hold) settle(ctx context.Context, q *Store, member int, late func()) {
	if h.asked == nil {
		return
	}
	select {
	case <-h.asked[member]:
	case <-ctx.Done():
		q.calls.Run(func() {
			<-h.asked[member]
			late()
		})
	}
}

func (h *hold) setFence(member int, fence int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fences[member] = fence
}

// on returns the reference to the hold on a member. Its fence is zero if the member has not granted
// the hold.
func (h *hold) on(member int, ref store.LeaseRef) store.LeaseRef {
	h.mu.Lock()
	defer h.mu.Unlock()
	ref.ID, ref.Fence = h.id, h.fences[member]
	return ref
}

// requestKept is how long an idle or finished request is kept, and slack how long a hold is kept
// after its lease, since its release is retried for another second.
const (
	requestKept = time.Minute
	slack       = 2 * time.Second
)

// lookup returns the reply to a repeated request.
func (r *requests) lookup(id string) (store.LeaseReply, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byID[id]
	switch {
	case known == nil:
		return store.LeaseReply{}, false
	case known.hold != nil:
		return store.LeaseReply{Outcome: store.Granted, Grant: known.grant}, true
	case known.withdrawn:
		return store.LeaseReply{Outcome: store.Withdrawn}, true
	}
	return store.LeaseReply{Outcome: store.Queued, Grant: queued}, true
}

// queued is the place of every waiter: there is no order.
var queued = store.Grant{Place: 1}

func (r *requests) queue(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(id)
}

// add returns a request, and adds it if it is new. The caller holds mu.
func (r *requests) add(id string) *request {
	if known := r.byID[id]; known != nil {
		return known
	}
	now := time.Now()
	if r.byID == nil {
		r.byID = make(map[string]*request)
	}
	if len(r.byID) >= r.sweepAt {
		for id, known := range r.byID {
			if known.cancelWait == nil && now.After(known.expires) {
				delete(r.byID, id)
			}
		}
		r.sweepAt = max(64, 2*len(r.byID))
	}
	added := &request{expires: now.Add(requestKept)}
	r.byID[id] = added
	return added
}

// await returns the request to wait for, whose withdrawal calls withdraw. If the request has ended,
// it returns its grant or its error instead.
func (r *requests) await(id string, withdraw context.CancelCauseFunc) (*request, store.Grant, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place := r.add(id)
	switch {
	case place.hold != nil:
		return nil, place.grant, nil
	case place.withdrawn:
		return nil, store.Grant{}, store.ErrWithdrawn
	}
	place.cancelWait = withdraw
	return place, store.Grant{}, nil
}

// endWait ends a wait, and keeps the request.
func (r *requests) endWait(place *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place.cancelWait = nil
	if place.hold == nil {
		place.expires = time.Now().Add(requestKept)
	}
}

// granted records a grant. It returns false if the request was withdrawn.
func (r *requests) granted(id string, h *hold, ttl time.Duration, grant store.Grant) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.add(id)
	if known.withdrawn {
		return false
	}
	known.hold, known.grant = h, grant
	known.keep(ttl)
	return true
}

// keep extends the life of the request to that of its hold.
func (p *request) keep(ttl time.Duration) {
	if until := time.Now().Add(ttl + slack); until.After(p.expires) {
		p.expires = until
	}
}

// holdOf returns the hold that a reference names, or nil.
func (r *requests) holdOf(ref store.LeaseRef) *hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byID[ref.ID]
	if known == nil || known.hold == nil || known.grant.Fence != ref.Fence {
		return nil
	}
	known.keep(ref.TTL)
	return known.hold
}

// release returns the hold of a request that is to be released, and whether the reference has its
// fence. A request that waits is withdrawn, and has no hold. The hold of an unknown request may be
// on any member.
func (r *requests) release(ref store.LeaseRef, members int) (h *hold, named bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byID[ref.ID]
	switch {
	case known == nil:
		return newHold(ref.ID, members), true
	case known.hold != nil:
		known.keep(ref.TTL)
		return known.hold, ref.Fence == 0 || ref.Fence == known.grant.Fence
	}
	known.withdrawn = true
	known.expires = time.Now().Add(requestKept)
	if known.cancelWait != nil {
		known.cancelWait(store.ErrWithdrawn)
	}
	return nil, false
}

// released records a confirmed release.
func (r *requests) released(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.byID[id]; known != nil && known.hold != nil {
		delete(r.byID, id)
	}
}
