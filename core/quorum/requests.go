package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// requests are the requests that were not granted at once, by ID. The members do not know these
// IDs: every attempt of a waiter has its own.
type requests struct {
	mu      sync.Mutex
	byID    map[string]*request
	sweepAt int // the size at which expired ones are removed
}

type request struct {
	id         string // the ID of its hold on the members; empty without one
	grant      store.Grant
	withdrawn  bool
	cancelWait context.CancelCauseFunc // during AwaitLock
	expires    time.Time
}

// requestKept is how long an idle or finished request is kept, and slack how long a hold is kept
// after its lease, since its release is retried for another second.
const (
	requestKept = time.Minute
	slack       = 2 * time.Second
)

// lookup returns the reply to a repeated request.
func (r *requests) lookup(id string) (store.LockReply, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byID[id]
	switch {
	case known == nil:
		return store.LockReply{}, false
	case known.id != "":
		return store.LockReply{Outcome: store.Granted, Grant: known.grant}, true
	case known.withdrawn:
		return store.LockReply{Outcome: store.Withdrawn}, true
	}
	return store.LockReply{Outcome: store.Queued}, true
}

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

// await returns the request to wait for, whose withdrawal calls withdraw; or its grant or error if
// it has ended.
func (r *requests) await(id string, withdraw context.CancelCauseFunc) (*request, store.Grant, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place := r.add(id)
	switch {
	case place.id != "":
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
	if place.id == "" {
		place.expires = time.Now().Add(requestKept)
	}
}

// granted records a grant. It returns false if the request was withdrawn.
func (r *requests) granted(place *request, attempt store.LockRequest, grant store.Grant) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if place.withdrawn {
		return false
	}
	place.id, place.grant = attempt.ID, grant
	place.keep(attempt.Ref())
	return true
}

// keep extends the life of the request to that of its hold.
func (p *request) keep(req store.LockRef) {
	if until := time.Now().Add(req.TTL + req.Delay + slack); until.After(p.expires) {
		p.expires = until
	}
}

// memberID returns the ID of a hold on the members.
func (r *requests) memberID(req store.LockRef) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byID[req.ID]
	if known == nil || known.id == "" {
		return req.ID
	}
	known.keep(req)
	return known.id
}

// release is memberID for a release. A waiting request is withdrawn, and has no hold.
func (r *requests) release(req store.LockRef) (id string, withdrawn bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.byID[req.ID]
	switch {
	case known == nil:
		return req.ID, false
	case known.id != "":
		known.keep(req)
		return known.id, false
	}
	known.withdrawn = true
	known.expires = time.Now().Add(requestKept)
	if known.cancelWait != nil {
		known.cancelWait(store.ErrWithdrawn)
	}
	return "", true
}

// released records a confirmed release.
func (r *requests) released(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.byID[id]; known != nil {
		known.expires = time.Now().Add(requestKept)
	}
}
