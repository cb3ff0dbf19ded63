package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// queueCases are the tests of Locks about waiters.
var queueCases = []testCase[store.Locks]{
	{"a release grants the lock to the next waiter, and wakes no other", releaseWakesOne},
	{"a new request never overtakes the queue", neverOvertakes},
	{"await recognises its own repeat", awaitTwice},
	{"await of an unknown request queues it", awaitUnknown},
	{"a queued request can be repeated", queueTwice},
	{"a withdrawn request is skipped", withdrawn},
	{"a withdrawn writer admits the readers behind it", withdrawnWriter},
	{"the end of a wait keeps the place", endedWaitKeepsPlace},
	{"a place without a call that awaits it expires", deadWaiter},
	{"places without calls that await them expire together", deadWaiters},
	{"an expiry admits the next waiter", expiryLetsIn},
	{"an expiry admits waiters behind a withdrawn one", expiryAfterLeave},
	{"the last reader's expiry admits a writer", readersExpire},
	{"a reader does not overtake a waiting writer", readersWait},
	{"a writer's release admits all readers before the next writer", phaseFair},
	{"many waiters exclude each other, and fences grow", storm},
	{"readers exclude writers only", readersStorm},
}

func releaseWakesOne(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	holder := l.exclusive()
	fence := l.granted(holder).LastFence
	var waiters []*waiter
	for i := range 5 {
		req := l.exclusive()
		if reply := l.queued(req); reply.Waiting != i {
			t.Errorf("%d wait before request %d", reply.Waiting, i)
		}
		waiters = append(waiters, l.await(req))
	}
	l.wait(waiters...)
	for i, w := range waiters {
		l.release(holder, true)
		grant := w.granted()
		if grant.Fence <= fence {
			t.Errorf("fence %d, after %d", grant.Fence, fence)
		}
		l.verify(holder, false)
		l.wait(waiters[i+1:]...)
		holder, fence = w.req, grant.LastFence
	}
	l.release(holder, true)
	l.granted(once(l.exclusive()))
}

func neverOvertakes(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	holder, first := l.exclusive(), l.exclusive()
	l.granted(holder)
	l.queued(first)
	l.taken(l.exclusive())
	l.release(holder, true)
	l.taken(l.exclusive()) // it is the other's turn, although no call awaits it yet
	l.taken(l.shared())
	l.await(first).granted()
	l.taken(l.exclusive())
}

func awaitTwice(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	holder := l.exclusive()
	l.granted(holder)
	w := l.waits(l.exclusive())
	l.release(holder, true)
	grant := w.granted()
	if again := l.await(w.req).granted(); again.Fence != grant.Fence || again.LastFence != grant.LastFence {
		t.Errorf("granted %+v, then %+v", grant, again)
	}
	l.release(w.req, true)
	l.await(w.req).fails(store.ErrWithdrawn)
	l.granted(once(l.exclusive()))
}

func awaitUnknown(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	first := l.exclusive()
	l.await(first).granted()
	next := l.waits(l.exclusive())
	late := l.exclusive()
	w := l.await(late)
	l.release(first, true)
	next.granted()
	l.release(next.req, true)
	w.granted()
}

func queueTwice(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	holder, first := l.exclusive(), l.exclusive()
	l.granted(holder)
	l.queued(first)
	second := l.waits(l.exclusive())
	if reply := l.queued(first); reply.Waiting != 1 {
		t.Errorf("%d others wait, want 1", reply.Waiting)
	}
	w := l.await(first)
	l.release(holder, true)
	w.granted()
	l.wait(second)
	l.acquire(first, store.Granted)
}

func withdrawn(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	holder := l.exclusive()
	l.granted(holder)
	first, second, third := l.waits(l.exclusive()), l.waits(l.exclusive()), l.waits(l.exclusive())
	l.release(second.req, false)
	second.fails(store.ErrWithdrawn)
	l.wait(first, third)
	l.release(first.req, false)
	first.fails(store.ErrWithdrawn)
	l.release(holder, true)
	third.granted()
	l.release(third.req, true)
	l.granted(once(l.exclusive()))

	// A request may also be withdrawn after it was granted.
	l = newLock(t, h)
	holder = l.exclusive()
	l.granted(holder)
	gone := l.exclusive()
	l.queued(gone)
	next := l.waits(l.exclusive())
	l.release(holder, true)
	l.release(gone, false)
	next.granted()
}

func withdrawnWriter(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	l.granted(l.shared())
	w := l.waits(l.exclusive())
	r1, r2 := l.waits(l.shared()), l.waits(l.shared())
	w2, r3 := l.waits(l.exclusive()), l.waits(l.shared())
	l.wait(w, r1, r2, w2, r3)
	l.release(w.req, false)
	w.fails(store.ErrWithdrawn)
	r1.granted()
	r2.granted()
	l.wait(w2, r3)
}

func endedWaitKeepsPlace(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	holder := l.exclusive()
	l.granted(holder)
	first, second := l.waits(l.exclusive()), l.waits(l.exclusive())
	first.cancel()
	first.fails(context.Canceled)
	l.verify(first.req, false)
	again := l.await(first.req)
	l.release(holder, true)
	again.granted()
	l.wait(second)
	l.release(first.req, true)
	second.granted()
}

// eventuallyGranted advances the clock until a waiter has the lock.
func (l lockCase) eventuallyGranted(w *waiter) {
	l.t.Helper()
	for range 16 {
		select {
		case <-w.done:
			w.granted()
			return
		default:
			l.h.Advance(500 * time.Millisecond)
		}
	}
	w.granted()
}

func deadWaiter(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	holder, dead := l.exclusive(), l.exclusive()
	l.granted(holder)
	l.queued(dead)
	next := l.waits(l.exclusive())
	l.release(holder, true)
	l.eventuallyGranted(next)
	// Its request may be repeated after that: it is queued again, behind earlier ones.
	l.verify(dead, false)
	revived := l.await(dead)
	l.release(next.req, true)
	revived.granted()
}

func deadWaiters(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	l.granted(l.shared())
	cancelled := l.waits(l.exclusive())
	l.queued(l.exclusive())
	reader := l.waits(l.shared())
	cancelled.cancel()
	cancelled.fails(context.Canceled)
	l.eventuallyGranted(reader)
	if state := l.inspect(); len(state.Holders) != 2 {
		t.Errorf("two readers have the lock: %+v", state)
	}
}

func expiryLetsIn(t *testing.T, h Harness[store.Locks]) {
	for _, shared := range []bool{false, true} {
		l := newLock(t, h)
		dies, waits := short(l.exclusive()), l.exclusive()
		waits.Shared = shared
		fence := l.granted(dies).LastFence
		l.acquireAny(waits) // it is queued, unless the machine is very slow
		w := l.await(waits)
		h.Advance(pastLease)
		if grant := w.granted(); grant.Fence <= fence && !shared {
			t.Errorf("fence %d, after %d", grant.Fence, fence)
		}
		l.renew(dies, false)
		l.release(dies, false)
		l.verify(waits, true)
	}
}

func expiryAfterLeave(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	dies := l.exclusive()
	dies.TTL = 300 * time.Millisecond
	l.granted(dies)
	first, second, third := l.exclusive(), l.exclusive(), l.exclusive()
	for _, req := range []store.LockRequest{first, second, third} {
		l.acquireAny(req)
	}
	w1, w2, w3 := l.await(first), l.await(second), l.await(third)
	if _, err := l.store.ReleaseLock(background(), holdOf(first)); err != nil {
		t.Fatal(err)
	}
	w1.ended()
	h.Advance(350 * time.Millisecond)
	w2.granted()
	l.release(second, true)
	w3.granted()
}

func readersExpire(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	for range 3 {
		l.acquire(short(l.shared()), store.Granted)
	}
	waits := l.exclusive()
	l.acquireAny(waits)
	w := l.await(waits)
	h.Advance(pastLease)
	w.granted()
	if state := l.inspect(); len(state.Holders) != 1 || state.Holders[0].Shared {
		t.Errorf("a writer has the lock: %+v", state)
	}
}

func readersWait(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	r1, r2 := l.shared(), l.shared()
	l.granted(r1)
	l.granted(r2)
	w := l.waits(l.exclusive())
	l.taken(l.shared())
	r3 := l.waits(l.shared())
	l.release(r1, true)
	l.wait(w, r3)
	l.release(r2, true)
	w.granted()
	l.wait(r3)
	l.release(w.req, true)
	r3.granted()
	l.granted(once(l.shared()))
}

func phaseFair(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w := l.exclusive()
	l.granted(w)
	r1, r2 := l.waits(l.shared()), l.waits(l.shared())
	w2, r3, w3 := l.waits(l.exclusive()), l.waits(l.shared()), l.waits(l.exclusive())
	l.release(w, true)
	r1.granted()
	r2.granted()
	l.wait(w2, r3, w3)
	l.release(r2.req, true)
	l.wait(w2, r3, w3)
	l.release(r1.req, true)
	w2.granted()
	l.wait(r3, w3)
	l.release(w2.req, true)
	r3.granted()
	l.wait(w3)
	l.release(r3.req, true)
	w3.granted()
}
