package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// permitQueueCases are the tests of Semaphores about waiters.
var permitQueueCases = []testCase[store.Permits]{
	{"a release grants a permit to the next waiter, and wakes no other", releaseGrantsOne},
	{"a heavy release makes room for several", releaseGrantsSeveral},
	{"a light request does not overtake a heavy one", heavyBlocks},
	{"light requests do not starve a heavy one", heavyIsServed},
	{"a new request never overtakes the queue of a semaphore", permitsNotOvertaken},
	{"a reserved permit does not block requests that fit", turnLeavesRoom},
	{"a barging request overtakes requests that do not fit", bargesPast},
	{"a barging request waits for room, and is granted when it fits", bargesInQueue},
	{"a barging request is granted from the end of the queue", bargesFromTheEnd},
	{"a full queue refuses requests", queueIsBounded},
	{"await of a permit recognises its own repeat", awaitPermitTwice},
	{"await of an unknown request for a permit queues it", awaitUnknownPermit},
	{"a queued request for a permit can be repeated", queuePermitTwice},
	{"a withdrawn request for a permit is skipped", withdrawnPermit},
	{"requests behind a withdrawn one move up", withdrawnHeavy},
	{"the end of a wait for a permit keeps the place", endedWaitKeepsTurn},
	{"the end of a wait delays no other", endedWaitDelaysNoOther},
	{"places and reservations without calls that await them expire", deadPermitWaiters},
}

func releaseGrantsOne(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	stays, leaves := p.request(1), p.request(1)
	p.granted(stays)
	p.granted(leaves)
	var waiters []*permitWaiter
	for i := range 5 {
		req := p.request(1)
		if reply := p.queued(req); reply.Waiting != i || reply.InUse != 2 {
			t.Errorf("2 in use, and %d wait before the request: %+v", i, reply)
		}
		waiters = append(waiters, p.await(req))
	}
	for i, w := range waiters {
		p.waiting(2, waiters[i:]...)
		p.release(leaves, true)
		w.granted()
		p.renew(leaves, false)
		leaves = w.req
	}
	p.release(leaves, true)
	p.state(1, 0)
	p.granted(tries(p.request(1)))
}

func releaseGrantsSeveral(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 4)
	heavy := p.request(4)
	p.granted(heavy)
	first, second, third := p.waits(p.request(1)), p.waits(p.request(2)), p.waits(p.request(1))
	fourth := p.waits(p.request(1))
	p.waiting(4, first, second, third, fourth)
	p.release(heavy, true)
	first.granted()
	second.granted()
	third.granted()
	p.waiting(4, fourth)
	p.release(second.req, true)
	fourth.granted()
	p.state(3, 0)
}

func heavyBlocks(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	one, two := p.request(1), p.request(2)
	p.granted(one)
	p.granted(two)
	heavy, light, last := p.waits(p.request(3)), p.waits(p.request(1)), p.waits(p.request(2))
	p.waiting(3, heavy, light, last)
	p.release(two, true)
	p.waiting(1, heavy, light, last)
	p.taken(p.request(1))
	p.release(one, true)
	heavy.granted()
	p.waiting(3, light, last)
	p.release(heavy.req, true)
	light.granted()
	last.granted()
	p.state(3, 0)
}

func heavyIsServed(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	var held []store.PermitRequest
	for range 3 {
		req := p.request(1)
		p.granted(req)
		held = append(held, req)
	}
	heavy := p.waits(p.request(3))
	waiters := []*permitWaiter{heavy}
	for i, req := range held {
		p.release(req, true)
		if i == len(held)-1 {
			break
		}
		p.taken(p.request(1))
		waiters = append(waiters, p.waits(p.request(1)))
		p.waiting(len(held)-1-i, waiters...)
	}
	heavy.granted()
	waiters = append(waiters, p.waits(p.request(1)), p.waits(p.request(1)))
	p.waiting(3, waiters[1:]...)
	p.release(heavy.req, true)
	for _, light := range waiters[1:4] {
		light.granted()
	}
	p.waiting(3, waiters[4])
}

func permitsNotOvertaken(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	one, two := p.request(1), p.request(1)
	p.granted(one)
	p.granted(two)
	first := p.request(2)
	p.queued(first)
	p.taken(p.request(1))
	p.release(one, true)
	p.taken(p.request(1))
	p.state(1, 1)
	p.release(two, true)
	p.taken(p.request(1)) // reserved for the other, although no call awaits it yet
	p.taken(barges(p.request(1)))
	behind := p.waits(p.request(1))
	if state := p.inspect(); state.InUse != 2 || state.Waiting != 1 || len(state.Holders) != 0 {
		t.Errorf("a permit of weight 2 has still to be claimed, and one request waits: %+v", state)
	}
	p.await(first).granted()
	p.taken(p.request(1))
	p.waiting(2, behind)
	p.release(first, true)
	behind.granted()

	// A repeat claims a permit too.
	claims := p.request(2)
	p.queued(claims)
	p.release(behind.req, true)
	p.taken(p.request(1))
	p.granted(claims)
	p.state(2, 0)
}

func turnLeavesRoom(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	held := p.request(3)
	p.granted(held)
	absent := p.request(2)
	p.queued(absent)
	light, late := p.waits(p.request(1)), p.waits(p.request(1))
	p.release(held, true)
	light.granted()
	p.renew(late.req, false)
	if state := p.inspect(); state.InUse != 3 {
		t.Errorf("one permit of weight 1, and one of weight 2 to be claimed: %+v", state)
	}
	p.await(absent).granted()
	p.waiting(3, late)

	p = newPermits(t, h, 3)
	held, absent = p.request(3), p.request(2)
	p.granted(held)
	p.queued(absent)
	p.release(held, true)
	p.granted(tries(p.request(1)))
	p.taken(p.request(1))
	p.granted(absent)
}

func bargesPast(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	held := p.request(2)
	p.granted(held)
	p.granted(tries(barges(p.request(1)))) // like any other without waiters
	p.taken(barges(p.request(1)))
	p.release(held, true)
	heavy := p.waits(p.request(3))
	p.taken(p.request(1))
	p.taken(barges(p.request(3)))
	quick := barges(p.request(1))
	p.granted(tries(quick))
	p.granted(barges(p.request(1)))
	p.waiting(3, heavy)
	p.taken(barges(p.request(1)))
	p.release(quick, true)
	p.waiting(2, heavy)
}

func bargesInQueue(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 4)
	one, two, three := p.request(1), p.request(1), p.request(2)
	for _, req := range []store.PermitRequest{one, two, three} {
		p.granted(req)
	}
	heavy, light := p.waits(p.request(4)), p.waits(p.request(1))
	bulky, quick := p.waits(barges(p.request(3))), p.waits(barges(p.request(1)))
	p.waiting(4, heavy, light, bulky, quick)
	p.release(one, true)
	quick.granted()
	p.waiting(4, heavy, light, bulky)
	p.release(two, true)
	p.waiting(3, heavy, light, bulky)
	p.release(three, true)
	bulky.granted()
	p.waiting(4, heavy, light)
	p.release(bulky.req, true)
	p.waiting(1, heavy, light)
	p.release(quick.req, true)
	heavy.granted()
	p.waiting(4, light)
}

func bargesFromTheEnd(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	stays, leaves := p.request(1), p.request(1)
	p.granted(stays)
	p.granted(leaves)
	for range 10 {
		p.queued(p.request(2))
	}
	quick := p.waits(barges(p.request(1)))
	p.release(leaves, true)
	quick.granted()
	p.state(2, 10)
}

func queueIsBounded(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	atMost := func(waiting int, req store.PermitRequest) store.PermitRequest {
		req.MaxWaiting = waiting
		return req
	}
	full := func(req store.PermitRequest, waiting int) {
		t.Helper()
		if reply := p.acquire(req, store.Taken); !reply.QueueFull || reply.Waiting != waiting || reply.InUse != 1 ||
			reply.Remaining <= longLease-eventually || reply.Remaining > longLease {
			t.Errorf("1 in use and a full queue of %d: %+v", waiting, reply)
		}
	}
	p.granted(atMost(1, p.request(1)))
	first, second := atMost(2, p.request(2)), atMost(2, p.request(1))
	p.queued(first)
	p.queued(second)
	refused := atMost(2, p.request(1))
	full(refused, 2)
	full(refused, 2) // a repeat
	full(atMost(1, p.request(1)), 2)
	full(atMost(2, barges(p.request(2))), 2)
	p.taken(atMost(2, p.request(1))) // it would not have been queued anyway
	for _, req := range []store.PermitRequest{first, second, atMost(1, second)} {
		if reply := p.queued(req); reply.Waiting != 1 || reply.QueueFull {
			t.Errorf("one request waits besides one that has its place already: %+v", reply)
		}
	}
	p.state(1, 2)
	third := p.request(1)
	p.queued(third) // without a bound
	fourth := atMost(4, p.request(1))
	p.queued(fourth)
	full(refused, 4)
	p.release(third, false)
	p.release(second, false)
	full(refused, 2)
	passes := atMost(1, barges(p.request(1)))
	p.granted(passes) // it need not queue
	p.release(passes, true)
	p.release(fourth, false)
	p.queued(refused)
	p.state(1, 2)
}

func awaitPermitTwice(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	held := p.request(2)
	p.granted(held)
	w := p.waits(p.request(2))
	p.release(held, true)
	grant := w.granted()
	if again := p.await(w.req).granted(); again.Fence != grant.Fence {
		t.Errorf("granted %+v, then %+v", grant, again)
	}
	p.state(2, 0)
	p.release(w.req, true)
	p.await(w.req).fails(store.ErrWithdrawn)
	p.state(0, 0)
	p.granted(tries(p.request(2)))
}

func awaitUnknownPermit(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	first := p.request(2)
	p.await(first).granted()
	next := p.waits(p.request(2))
	req := p.request(1)
	req.MaxWaiting = 1 // that was not exceeded when it was queued
	late := p.await(req)
	p.release(first, true)
	next.granted()
	p.release(next.req, true)
	late.granted()
}

func queuePermitTwice(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	held := p.request(3)
	p.granted(held)
	first := p.request(2)
	p.queued(first)
	second := p.waits(p.request(2))
	for range 2 {
		if reply := p.queued(first); reply.Waiting != 1 || reply.InUse != 3 {
			t.Errorf("one other waits: %+v", reply)
		}
	}
	w := p.await(first)
	if reply := p.queued(second.req); reply.Waiting != 1 {
		t.Errorf("one other waits: %+v", reply)
	}
	p.waiting(3, w, second)
	p.release(held, true)
	grant := w.granted()
	p.waiting(2, second)
	p.same(first, grant)
}

func withdrawnPermit(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	held := p.request(2)
	p.granted(held)
	first, second, third := p.waits(p.request(2)), p.waits(p.request(1)), p.waits(p.request(2))
	p.release(second.req, false)
	second.fails(store.ErrWithdrawn)
	p.waiting(2, first, third)
	p.release(first.req, false)
	first.fails(store.ErrWithdrawn)
	p.waiting(2, third)
	p.release(held, true)
	third.granted()
	p.release(third.req, true)
	p.granted(tries(p.request(2)))

	// A request may also be withdrawn after it was granted.
	p = newPermits(t, h, 2)
	held = p.request(2)
	p.granted(held)
	gone := p.request(2)
	p.queued(gone)
	next := p.waits(p.request(1))
	p.release(held, true)
	p.renew(next.req, false)
	p.release(gone, false)
	next.granted()
	p.state(1, 0)
	p.acquire(gone, store.Withdrawn)
}

func withdrawnHeavy(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 4)
	p.granted(p.request(2))
	heavy, light, heavier, last := p.waits(p.request(3)), p.waits(p.request(1)), p.waits(p.request(4)), p.waits(p.request(1))
	p.waiting(2, heavy, light, heavier, last)
	p.release(heavy.req, false)
	heavy.fails(store.ErrWithdrawn)
	light.granted()
	p.waiting(3, heavier, last)
	p.release(heavier.req, false)
	heavier.fails(store.ErrWithdrawn)
	last.granted()
	p.state(4, 0)
}

func endedWaitKeepsTurn(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	held := p.request(2)
	p.granted(held)
	first, second := p.waits(p.request(2)), p.waits(p.request(1))
	first.cancel()
	first.fails(context.Canceled)
	p.renew(first.req, false)
	p.state(2, 2)
	again := p.await(first.req)
	p.release(held, true)
	again.granted()
	p.waiting(2, second)
	p.release(first.req, true)
	second.granted()
}

func endedWaitDelaysNoOther(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	held := p.request(3)
	p.granted(held)
	first, second, third := p.waits(p.request(3)), p.waits(p.request(3)), p.waits(p.request(2))
	for _, w := range []*permitWaiter{first, second} {
		w.cancel()
		w.fails(context.Canceled)
	}
	// One is withdrawn before its grant, the other after it.
	p.release(first.req, false)
	p.release(held, true)
	p.release(second.req, false)
	before := time.Now()
	third.granted()
	if d := time.Since(before); d > 1500*time.Millisecond {
		t.Errorf("withdrawn requests delayed the next one by %v", d)
	}
	p.state(2, 0)
}

// eventuallyGranted advances the clock until a waiter has its permit.
func (p permitCase) eventuallyGranted(w *permitWaiter) {
	p.t.Helper()
	for range 16 {
		select {
		case <-w.done:
			w.granted()
			return
		default:
			p.h.Advance(500 * time.Millisecond)
		}
	}
	w.granted()
}

func deadPermitWaiters(t *testing.T, h Harness[store.Permits]) {
	// Two semaphores, so that it takes as long as one of them: in the first a reservation expires,
	turn := newPermits(t, h, 3)
	held, absent := turn.request(3), turn.request(2)
	turn.granted(held)
	turn.queued(absent)
	next := turn.waits(turn.request(3))
	turn.release(held, true)

	// and in the second two places: one that no call has awaited, and one of a wait that has ended.
	place := newPermits(t, h, 3)
	stays := place.request(1)
	place.granted(stays)
	ended := place.waits(place.request(3))
	place.queued(place.request(3))
	light, other := place.waits(place.request(1)), place.waits(place.request(1))
	bounded := place.request(3)
	bounded.MaxWaiting = 4
	if reply := place.acquire(bounded, store.Taken); !reply.QueueFull {
		t.Errorf("four wait: %+v", reply)
	}
	ended.cancel()
	ended.fails(context.Canceled) // from now on only waiters call the store

	turn.eventuallyGranted(next)
	place.eventuallyGranted(light)
	place.eventuallyGranted(other) // perhaps first: with a clock that is ahead, waiters lose their places too
	place.queued(bounded)
	place.state(3, 1)

	// Its request may be repeated after that: it is queued again, behind earlier ones.
	turn.renew(absent, false)
	revived := turn.waits(absent)
	turn.waiting(3, revived)
	turn.release(next.req, true)
	revived.granted()
}
