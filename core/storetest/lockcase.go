package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// eventually is how long a test waits for an event.
	eventually = 10 * time.Second
	// shortLease is over after pastLease.
	shortLease = 40 * time.Millisecond
	pastLease  = 60 * time.Millisecond
	// clocks is the tolerance for the difference of the store's and the test's clocks during a
	// test.
	clocks = 20 * time.Millisecond
)

// lockCase is the lock of a test.
type lockCase struct {
	t         *testing.T
	h         Harness[store.Locks]
	store     store.Locks
	name, key string
	since     time.Time
}

func newLock(t *testing.T, h Harness[store.Locks]) lockCase {
	return lockCase{t, h, h.Store, unique("lock"), "k", time.Now()}
}

// exclusive is a new request that queues.
func (l lockCase) exclusive() store.LockRequest {
	return store.LockRequest{
		Name: l.name, Key: l.key, ID: newOwner(), Queue: true, TTL: longLease, Fences: 1, Holder: "a label",
	}
}

func (l lockCase) shared() store.LockRequest {
	req := l.exclusive()
	req.Shared = true
	return req
}

// once returns the same request without queueing.
func once(req store.LockRequest) store.LockRequest {
	req.Queue = false
	return req
}

func short(req store.LockRequest) store.LockRequest {
	req.TTL = shortLease
	return req
}

func holdOf(req store.LockRequest) store.LockRef {
	return store.LockRef{Name: req.Name, Key: req.Key, ID: req.ID, Shared: req.Shared, TTL: req.TTL, Delay: req.Delay}
}

func (l lockCase) acquire(req store.LockRequest, want store.AcquireOutcome) store.LockReply {
	l.t.Helper()
	reply := l.acquireAny(req)
	if reply.Outcome != want {
		l.t.Fatalf("AcquireLock: outcome %d, want %d: %+v", reply.Outcome, want, reply)
	}
	return reply
}

func (l lockCase) acquireAny(req store.LockRequest) store.LockReply {
	l.t.Helper()
	reply, err := l.store.AcquireLock(background(), req)
	if err != nil {
		l.t.Fatalf("AcquireLock: %v", err)
	}
	return reply
}

func (l lockCase) granted(req store.LockRequest) store.Grant {
	l.t.Helper()
	before := time.Now()
	grant := l.acquire(req, store.Granted).Grant
	l.checkGrant(req, grant, before)
	return grant
}

// same repeats a request that was granted.
func (l lockCase) same(req store.LockRequest, grant store.Grant) {
	l.t.Helper()
	again := l.acquire(req, store.Granted)
	if again.Fence != grant.Fence || again.LastFence != grant.LastFence {
		l.t.Errorf("granted %+v, then %+v", grant, again.Grant)
	}
}

func (l lockCase) queued(req store.LockRequest) store.LockReply {
	l.t.Helper()
	return l.acquire(req, store.Queued)
}

func (l lockCase) taken(req store.LockRequest) {
	l.t.Helper()
	l.acquire(once(req), store.Taken)
}

// checkGrant checks a grant of a request that was sent at before or later.
func (l lockCase) checkGrant(req store.LockRequest, grant store.Grant, before time.Time) {
	l.t.Helper()
	if grant.Sent.Before(before.Add(-time.Millisecond)) || grant.Sent.After(time.Now()) {
		l.t.Errorf("a request of %v was sent at %v", before, grant.Sent)
	}
	most := int64(req.Fences)
	if req.Shared {
		most = 1
	}
	if n := grant.LastFence - grant.Fence + 1; grant.Fence <= 0 || n < 1 || n > most {
		l.t.Errorf("fences %d to %d, want 1 to %d of them", grant.Fence, grant.LastFence, most)
	}
	if req.TTL != longLease {
		return
	}
	for _, holder := range l.inspect().Holders {
		// The holder's deadline must not be after the store's.
		if ends := grant.Sent.Add(req.TTL); holder.Fence == grant.Fence && holder.Remaining < time.Until(ends)-clocks {
			l.t.Errorf("the lease ends in %v, for its holder in %v", holder.Remaining, time.Until(ends))
		}
	}
}

func (l lockCase) release(req store.LockRequest, want bool) {
	l.t.Helper()
	held, err := l.store.ReleaseLock(background(), holdOf(req))
	l.check("ReleaseLock", held, err, want)
}

func (l lockCase) verify(req store.LockRequest, want bool) {
	l.t.Helper()
	held, err := l.store.VerifyLock(background(), holdOf(req))
	l.check("VerifyLock", held, err, want)
}

func (l lockCase) renew(req store.LockRequest, want bool) {
	l.t.Helper()
	l.check("RenewLocks", l.renews(req), nil, want)
}

func (l lockCase) renews(req store.LockRequest) bool {
	l.t.Helper()
	held, err := l.store.RenewLocks(background(), []store.LockRef{holdOf(req)})
	if err != nil || len(held) != 1 {
		l.t.Fatalf("RenewLocks of one answered for %d: %v", len(held), err)
	}
	return held[0]
}

func (l lockCase) downgrade(req store.LockRequest, want bool) {
	l.t.Helper()
	held, err := l.store.DowngradeLock(background(), holdOf(req))
	l.check("DowngradeLock", held, err, want)
}

func (l lockCase) force(fence int64, want bool) {
	l.t.Helper()
	ended, err := l.store.ForceUnlock(background(), l.name, l.key, fence)
	l.check("ForceUnlock", ended, err, want)
}

func (l lockCase) check(method string, got bool, err error, want bool) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", method, err)
	}
	if got != want {
		l.t.Fatalf("%s: %v, want %v", method, got, want)
	}
}

func (l lockCase) inspect() store.LockState {
	l.t.Helper()
	state, err := l.store.InspectLock(background(), l.name, l.key)
	if err != nil {
		l.t.Fatalf("InspectLock: %v", err)
	}
	if state.Key != l.key {
		l.t.Fatalf("InspectLock of %q answered for %q", l.key, state.Key)
	}
	return state
}

// waiter is an awaited request.
type waiter struct {
	*call
	l   lockCase
	req store.LockRequest
}

// await awaits a request until the test ends.
func (l lockCase) await(req store.LockRequest) *waiter {
	await := func(ctx context.Context) (store.Grant, error) { return l.store.AwaitLock(ctx, req) }
	return &waiter{begin(l.t, l.h.Advance, "AwaitLock", func() any { return l.inspect() }, await), l, req}
}

// waits queues and awaits a request.
func (l lockCase) waits(req store.LockRequest) *waiter {
	l.t.Helper()
	l.queued(req)
	return l.await(req)
}

func (w *waiter) granted() store.Grant {
	w.l.t.Helper()
	w.fails(nil)
	w.l.checkGrant(w.req, w.grant, w.l.since)
	if w.req.TTL == longLease {
		w.l.verify(w.req, true)
	}
	return w.grant
}

// wait checks that all of the waiters still wait.
func (l lockCase) wait(ws ...*waiter) {
	l.t.Helper()
	for _, w := range ws {
		l.verify(w.req, false)
	}
	if got := l.inspect().Waiting; got != len(ws) {
		l.t.Fatalf("%d wait, want %d", got, len(ws))
	}
	for _, w := range ws {
		w.waits()
	}
}
