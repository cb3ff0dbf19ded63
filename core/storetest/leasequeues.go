package storetest

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseQueueTests are the tests of Leases about waiters.
var leaseQueueTests = []leaseTest{
	{"a new request never overtakes the queue", leaseCase.neverOvertakes},
	{"a full queue refuses requests", leaseCase.queueIsBounded},
	{"await recognises its own repeat", leaseCase.awaitTwice},
	{"await of an unknown request queues it", leaseCase.awaitUnknown},
	{"a queued request can be repeated", leaseCase.queueTwice},
	{"a request can be withdrawn after its grant", leaseCase.withdrawnLate},
	{"the end of a wait keeps the place", leaseCase.endedWaitKeepsPlace},
	{"the end of a wait delays no other", leaseCase.endedWaitDelaysNoOther},
	{"a wait that begins after the withdrawal ends", leaseCase.waitsAfterItsWithdrawal},
	{"places are numbers in the order of the queue", leaseCase.places},
	{"a request is queued anew at its number", leaseCase.queuedAnew},
	{"a grant after a wait lasts for its TTL", leaseCase.grantLasts},
	{"places and grants that no call awaits expire", leaseCase.deadWaiters},
}

func (l leaseCase) neverOvertakes() {
	holder, first := l.whole(), l.whole()
	l.granted(holder)
	first.Place = l.queued(first).Place
	l.refused(l.whole())
	l.release(holder)
	l.refused(l.whole()) // it is the other's turn, although no call awaits it yet
	l.refused(l.light())
	behind := l.waits(l.light())
	l.await(first).granted()
	l.refused(l.light())
	l.waiting(l.capacity, behind)
	l.release(first)
	behind.granted()

	// A repeat takes a grant too.
	takes := l.whole()
	takes.Place = l.queued(takes).Place
	l.release(behind.req)
	l.refused(l.light())
	l.granted(takes)
	l.state(l.capacity, 0)
}

func (l leaseCase) queueIsBounded() {
	atMost := func(n int, req store.LeaseRequest) store.LeaseRequest {
		req.MaxWaiting = n
		return req
	}
	full := func(req store.LeaseRequest, waiting int) {
		l.t.Helper()
		if reply := l.acquire(req, store.Taken); !reply.QueueFull || reply.Waiting != waiting || reply.InUse != 1 || !l.long(reply) {
			l.t.Errorf("1 in use and a full queue of %d: %+v", waiting, reply)
		}
	}
	l.granted(atMost(1, l.light()))
	first, second := atMost(2, l.whole()), atMost(2, l.light())
	second.Reserve = 1 // requests behind a request count too
	l.queued(first)
	l.queued(second)
	refused := atMost(2, l.light())
	full(refused, 2)
	full(refused, 2) // a repeat
	full(atMost(1, l.light()), 2)
	l.refused(atMost(2, l.light())) // it would not have been queued anyway
	for _, req := range []store.LeaseRequest{first, second, atMost(1, second)} {
		if reply := l.queued(req); reply.Waiting != 1 || reply.QueueFull {
			l.t.Errorf("one request waits beside one that has its place already: %+v", reply)
		}
	}
	l.state(1, 2)
	third := l.light()
	l.queued(third) // without a bound
	fourth := atMost(4, l.light())
	l.queued(fourth)
	full(refused, 4)
	l.withdraw(third)
	l.withdraw(second)
	full(refused, 2)
	l.withdraw(fourth)
	l.queued(refused)
	l.state(1, 2)
}

func (l leaseCase) awaitTwice() {
	holder := l.whole()
	l.granted(holder)
	w := l.waits(l.whole())
	l.release(holder)
	grant := w.granted()
	if again := l.await(w.req).granted(); again.Fence != grant.Fence || again.LastFence != grant.LastFence {
		l.t.Errorf("granted %+v, then %+v", grant, again)
	}
	l.state(l.capacity, 0)
	l.release(w.req)
	l.state(0, 0)
	l.granted(trying(l.whole()))
}

func (l leaseCase) awaitUnknown() {
	first := l.whole()
	l.await(first).granted()
	next := l.waits(l.whole())
	late := l.light()
	late.MaxWaiting = 1 // that was not exceeded when it was queued
	w := l.await(late)
	l.release(first)
	next.granted()
	l.release(next.req)
	w.granted()
	never := l.light()
	never.Reserve = l.capacity
	l.await(never).fails(store.ErrWithdrawn)
}

func (l leaseCase) queueTwice() {
	holder, first := l.whole(), l.whole()
	l.granted(holder)
	place := l.queued(first).Place
	second := l.waits(l.whole())
	for range 2 {
		if reply := l.queued(first); reply.Waiting != 1 || reply.InUse != l.capacity || reply.Place != place {
			l.t.Errorf("one other waits, place %d: %+v", place, reply)
		}
	}
	w := l.await(first)
	l.queued(second.req)
	l.waiting(l.capacity, w, second)
	l.release(holder)
	grant := w.granted()
	l.waiting(l.capacity, second)
	l.same(first, grant)
}

func (l leaseCase) withdrawnLate() {
	holder, gone := l.whole(), l.whole()
	l.granted(holder)
	l.queued(gone)
	next := l.waits(l.light())
	l.release(holder)
	next.waits()
	l.end(gone, store.Released, store.NotHeld) // by its ID alone, whether it has been granted or not
	next.granted()
	l.state(1, 0)
}

func (l leaseCase) endedWaitKeepsPlace() {
	holder := l.whole()
	l.granted(holder)
	first, second := l.waits(l.whole()), l.waits(l.light())
	first.cancel()
	first.fails(context.Canceled)
	l.verify(first.req, false)
	l.state(l.capacity, 2)
	again := l.await(first.req)
	l.release(holder)
	again.granted()
	l.waiting(l.capacity, second)
	l.release(first.req)
	second.granted()
}

// A wait may begin after the release of its request: it does not queue the request anew.
func (l leaseCase) waitsAfterItsWithdrawal() {
	holder, req := l.whole(), l.whole()
	l.granted(holder)
	req.Place = l.queued(req).Place
	l.withdraw(req)
	l.await(req).fails(store.ErrWithdrawn)
	l.state(l.capacity, 0)
	l.release(holder)
	l.state(0, 0)
}

func (l leaseCase) endedWaitDelaysNoOther() {
	holder := l.whole()
	l.granted(holder)
	first, second, third := l.waits(l.whole()), l.waits(l.whole()), l.waits(l.light())
	for _, w := range []*leaseWait{first, second} {
		w.cancel()
		w.fails(context.Canceled)
	}
	// One is withdrawn before its grant, the other after it.
	l.withdraw(first.req)
	l.release(holder)
	l.end(second.req, store.Released, store.NotHeld)
	before := time.Now()
	third.granted()
	if d := time.Since(before); d > 1500*time.Millisecond {
		l.t.Errorf("withdrawn requests delayed the next one by %v", d)
	}
	l.state(1, 0)
}

func (l leaseCase) places() {
	holder := l.whole()
	if grant := l.granted(holder); grant.Place != 0 {
		l.t.Errorf("a request that has not waited has place %d", grant.Place)
	}
	var (
		waiters []*leaseWait
		last    int64
	)
	for i := range 4 {
		w := l.waits(l.whole())
		if w.req.Place <= last {
			l.t.Errorf("place %d, after %d", w.req.Place, last)
		}
		waiters, last = append(waiters, w), w.req.Place
		if i == 1 {
			l.h.Advance(5 * time.Millisecond)
		}
	}
	for i, w := range waiters {
		l.release(holder)
		if grant := w.granted(); grant.Place != w.req.Place {
			l.t.Errorf("place %d in the grant, %d in the queue", grant.Place, w.req.Place)
		}
		l.waiting(l.capacity, waiters[i+1:]...)
		holder = w.req
	}
}

func (l leaseCase) queuedAnew() {
	holder, lost, short := l.whole(), l.whole(), l.whole()
	l.granted(holder)
	first := l.waits(l.whole())
	lost.Place, short.Place = l.queued(lost).Place, l.queued(short).Place
	last := l.waits(l.whole())
	for _, req := range []store.LeaseRequest{lost, short} {
		l.withdraw(req)
	}
	// To the store these are requests that have lost their places.
	anew := l.whole()
	anew.Place, anew.MaxWaiting = lost.Place, 1
	second := l.await(anew)
	short.ID = newOwner()
	if reply := l.queued(short); reply.Place != short.Place {
		l.t.Errorf("queued anew at %d: %+v", short.Place, reply)
	}
	third := l.await(short)
	l.untilWaiting(4)
	for i, w := range []*leaseWait{first, second, third, last} {
		l.waiting(l.capacity, []*leaseWait{first, second, third, last}[i:]...)
		l.release(holder)
		if grant := w.granted(); grant.Place != w.req.Place {
			l.t.Errorf("place %d, granted %+v", w.req.Place, grant)
		}
		holder = w.req
	}

	// If the place is before all others, free capacity is granted.
	l.waiting(l.capacity)
	l.downgrade(holder, 1, true)
	behind := l.waits(l.whole())
	l.refused(l.light())
	early := l.light()
	early.Place = lost.Place
	l.granted(early)
	l.waiting(2, behind)

	// A later request stands behind it, even if its number is ahead of the clock.
	late := l.light()
	late.Place = behind.req.Place + int64(time.Hour/time.Microsecond)
	l.queued(late)
	if place := l.queued(l.light()).Place; place <= late.Place {
		l.t.Errorf("place %d, after %d", place, late.Place)
	}
}

// untilWaiting waits until calls that may have to queue their requests have done so.
func (l leaseCase) untilWaiting(n int) {
	l.t.Helper()
	for began := time.Now(); l.inspect().Waiting != n && time.Since(began) < eventually; {
		l.h.Advance(time.Millisecond)
	}
}

func (l leaseCase) grantLasts() {
	for i, confirmed := range []bool{false, true, false} {
		l := l.another()
		holder, req := l.whole(), l.light()
		req.Confirmed = confirmed
		l.granted(holder)
		req.Place = l.queued(req).Place
		awaited := i < 2
		if !awaited {
			l.release(holder)
		}
		w := begin(l.t, l.h.Advance, "AwaitLease", func() any { return l.inspect() }, func(ctx context.Context) (store.Grant, error) {
			return l.store.AwaitLease(ctx, req)
		})
		if awaited {
			l.release(holder)
		}
		w.fails(nil)
		switch grant := w.grant; {
		case grant.Untaken && (confirmed || grant.TTL <= 0 || grant.TTL > req.TTL):
			l.t.Errorf("confirmed %v: %+v", confirmed, grant)
		case grant.Untaken:
			if !l.renewAll(req.Ref(grant.Fence))[0] {
				l.t.Errorf("an untaken grant is not held: %+v", grant)
			}
		case grant.TTL != 0 && grant.TTL < req.TTL:
			l.t.Errorf("a grant that is no shorter one: %+v", grant)
		}
		state := l.state(1, 0)
		if remaining := state.Holders[0].Remaining; remaining <= longLease-eventually || remaining > longLease {
			l.t.Errorf("the hold has %v left, of %v", remaining, longLease)
		}
	}
}

// eventuallyGranted advances the clock until a waiter holds.
func (w *leaseWait) eventuallyGranted() {
	w.l.t.Helper()
	for range 16 {
		select {
		case <-w.done:
			w.granted()
			return
		default:
			w.l.h.Advance(500 * time.Millisecond)
		}
	}
	w.granted()
}

func (l leaseCase) deadWaiters() {
	// Two keys, so that it takes as long as one of them: in the first a grant expires,
	turn := l
	held, absent := turn.whole(), turn.whole()
	turn.granted(held)
	absent.Place = turn.queued(absent).Place
	next := turn.waits(turn.whole())
	turn.release(held)

	// and in the second two places: one that no call has awaited, and one of a wait that has ended.
	place := l.another()
	place.granted(place.light())
	ended := place.waits(place.whole())
	place.queued(place.whole())
	light, other := place.waits(place.light()), place.waits(place.light())
	bounded := place.whole()
	bounded.MaxWaiting = 4
	if reply := place.acquire(bounded, store.Taken); !reply.QueueFull {
		l.t.Errorf("four wait: %+v", reply)
	}
	ended.cancel()
	ended.fails(context.Canceled) // from now on only waiters call the store

	next.eventuallyGranted()
	light.eventuallyGranted()
	other.eventuallyGranted() // perhaps first: with a clock that is ahead, waiters lose their places too
	place.queued(bounded)
	place.state(3, 1)

	// Its request may be repeated after that, and stands at its number.
	turn.verify(absent, false)
	behind := turn.waits(turn.whole())
	revived := turn.await(absent)
	turn.untilWaiting(2)
	turn.waiting(turn.capacity, behind, revived)
	turn.release(next.req)
	revived.granted()
	turn.waiting(turn.capacity, behind)
}
