package storetest

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// permitCapacityCases are the tests of Semaphores about capacities that differ, and that change
// while a request waits.
var permitCapacityCases = []testCase[store.Permits]{
	{"every request is limited by its own capacity", capacitiesDiffer},
	{"a smaller capacity ends no permit", smallerCapacityDrains},
	{"a waiting request is granted with a larger capacity", largerCapacityGoesOn},
	{"a larger capacity does not change the place", largerCapacityKeepsPlace},
	{"a waiting barging request is granted with a larger capacity", largerCapacityBarges},
	{"a waiting request with a smaller capacity waits longer", smallerCapacityWaits},
}

func capacitiesDiffer(t *testing.T, h Harness[store.Permits]) {
	small, large := newPermits(t, h, 2), newPermits(t, h, 5)
	large.name = small.name
	held := []store.PermitRequest{large.request(1), large.request(1), large.request(1)}
	for _, req := range held {
		large.granted(req)
	}
	small.taken(small.request(1)) // more is in use than its capacity, so it waits
	large.granted(large.request(1))
	waits := small.waits(small.request(1))
	large.taken(large.request(1)) // there is room for it, but the other was first
	behind := large.waits(large.request(1))
	for i, req := range held {
		large.waiting(4-i, waits, behind)
		large.release(req, true)
	}
	waits.granted()
	behind.granted()
	small.taken(small.request(1))
	large.granted(large.request(2))
	large.taken(large.request(1))
	large.state(5, 0)
}

func smallerCapacityDrains(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 5)
	one, two, three := p.request(1), p.request(2), p.request(2)
	for _, req := range []store.PermitRequest{one, two, three} {
		p.granted(req)
	}
	p.capacity = 2
	waits := p.waits(p.request(1))
	p.taken(p.request(1))
	for _, req := range []store.PermitRequest{one, two, three} {
		p.renew(req, true)
	}
	p.waiting(5, waits)
	p.release(two, true)
	p.waiting(3, waits)
	p.release(one, true)
	p.waiting(2, waits)
	p.release(three, true)
	waits.granted()
	p.granted(p.request(1))
	p.taken(p.request(1))
}

func largerCapacityGoesOn(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	p.granted(p.request(2))
	head, second, third := p.waits(p.request(2)), p.waits(of(5, p.request(1))), p.waits(p.request(1))
	p.waiting(2, head, second, third)
	p.queued(of(3, head.req))
	p.waiting(2, head, second, third)
	grant := p.acquire(of(4, head.req), store.Granted).Grant
	if woken := head.granted(); woken.Fence != grant.Fence {
		t.Errorf("granted %+v, and its waiter %+v", grant, woken)
	}
	second.granted() // nothing else blocked it
	p.waiting(5, third)
	p.release(head.req, true)
	p.waiting(3, third)
	p.release(second.req, true)
	p.waiting(2, third)
}

func largerCapacityKeepsPlace(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	held := p.request(1)
	p.granted(held)
	head, second, third := p.waits(p.request(2)), p.waits(p.request(1)), p.waits(p.request(1))
	for range 2 {
		if reply := p.queued(of(9, second.req)); reply.Waiting != 2 || reply.InUse != 1 {
			t.Errorf("1 in use and two others waiting: %+v", reply)
		}
	}
	p.waiting(1, head, second, third)
	p.release(held, true)
	head.granted()
	second.granted()
	p.waiting(3, third)
}

func largerCapacityBarges(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	p.granted(p.request(2))
	head, quick := p.waits(p.request(2)), p.waits(barges(p.request(1)))
	p.waiting(2, head, quick)
	p.acquire(of(3, quick.req), store.Granted)
	quick.granted()
	p.waiting(3, head)
}

func smallerCapacityWaits(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	held := []store.PermitRequest{p.request(1), p.request(1), p.request(1)}
	for _, req := range held {
		p.granted(req)
	}
	head, behind := p.waits(p.request(1)), p.waits(p.request(1))
	p.queued(of(1, head.req))
	for i, req := range held {
		p.waiting(3-i, head, behind)
		p.release(req, true)
	}
	head.granted()
	behind.granted()
	p.state(2, 0)
}
