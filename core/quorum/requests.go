package quorum

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// requests are the requests that were not granted at once, by ID. The members do not know these
// IDs: every attempt of one that waits has another.
type requests struct {
	mu      sync.Mutex
	byID    map[string]*request
	sweepAt int // at so many, those that have expired go
}

type request struct {
	id        string // what the members know its hold by; empty until it has one
	grant     store.Grant
	withdrawn bool
	withdraw  context.CancelCauseFunc // while AwaitLock is under way
	expires   time.Time
}

// requestKept is for how long a request is remembered of which nothing is heard, or nothing more is
// to be done; and slack what a hold is remembered for after its lease, since its release is repeated
// for a second more.
const (
	requestKept = time.Minute
	slack       = 2 * time.Second
)

// again returns the reply to a request that was asked before.
func (r *requests) again(id string) (store.LockReply, bool) {
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

// add finds a request, or makes it. The caller holds mu.
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
			if known.withdraw == nil && now.After(known.expires) {
				delete(r.byID, id)
			}
		}
		r.sweepAt = max(64, 2*len(r.byID))
	}
	added := &request{expires: now.Add(requestKept)}
	r.byID[id] = added
	return added
}

// await finds the place of a request, which withdraw empties; or none, if there is an answer already.
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
	place.withdraw = withdraw
	return place, store.Grant{}, nil
}

// leave ends the waiting, but not the place.
func (r *requests) leave(place *request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	place.withdraw = nil
	if place.id == "" {
		place.expires = time.Now().Add(requestKept)
	}
}

// granted reports false if the request has been withdrawn.
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

// keep keeps a hold in mind for as long as it may last.
func (p *request) keep(req store.LockRef) {
	if until := time.Now().Add(req.TTL + req.Delay + slack); until.After(p.expires) {
		p.expires = until
	}
}

// memberID is the ID that the members know a hold by.
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

// release is memberID for a release. If the request waits, it is withdrawn, and has no hold.
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
	if known.withdraw != nil {
		known.withdraw(store.ErrWithdrawn)
	}
	return "", true
}

// released lets a hold go whose release was confirmed.
func (r *requests) released(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.byID[id]; known != nil {
		known.expires = time.Now().Add(requestKept)
	}
}
