package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// permitLeaseCases are the tests of Semaphores about the ends of permits, and about fences.
var permitLeaseCases = []testCase[store.Permits]{
	{"a permit expires", permitExpires},
	{"every permit has a lease of its own", permitLeases},
	{"many permits expire at once", manyExpire},
	{"release of an expired permit reports false", releaseExpiredPermit},
	{"renewal extends a permit", renewsPermit},
	{"renewal of an expired permit does not revive it", renewExpiredPermit},
	{"renewals of permits are reported one by one", renewPermits},
	{"permits have different fences", permitFences},
	{"repeats and renewals keep the fence", fencesStay},
	{"an expiry grants a waiter its permit", expiryGrants},
	{"an expiry with too little room grants nothing", expiryTooSmall},
	{"several expiries make room for a heavy request", expiriesAddUp},
	{"an expiry grants permits behind a withdrawn request", expiryBehindLeave},
	{"successive expiries grant successive waiters", expiriesInTurn},
	{"a renewal keeps waiters waiting", renewalKeepsOut},
}

func permitExpires(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 5)
	dead := dies(p.request(3))
	p.granted(dead)
	p.granted(p.request(1))
	h.Advance(pastLease)
	p.state(1, 0)
	p.renew(dead, false)
	if reply := p.acquire(tries(p.request(5)), store.Taken); reply.InUse != 1 || reply.Remaining <= shortLease {
		t.Errorf("of the two permits one has expired: %+v", reply)
	}
	p.granted(tries(p.request(4)))

	p = newPermits(t, h, 1)
	p.granted(dies(p.request(1)))
	h.Advance(pastLease)
	for state, err := range p.store.ListPermits(background(), p.name) {
		t.Errorf("a semaphore whose permits have expired is in the list: %+v, %v", state, err)
	}
	p.state(0, 0)
	p.granted(tries(p.request(1)))
}

func permitLeases(t *testing.T, h Harness[store.Permits]) {
	inTime(t, 500*time.Millisecond, func(ttl time.Duration) (late bool) {
		p := newPermits(t, h, 8)
		before, dead, later, doomed, after := p.request(1), dies(p.request(2)), p.request(1), p.request(1), p.request(3)
		later.TTL, doomed.TTL = ttl, ttl+10*time.Millisecond
		began := time.Now()
		for _, req := range []store.PermitRequest{before, dead, later, doomed, after} {
			p.granted(req)
		}
		h.Advance(pastLease)
		p.renew(dead, false)
		if expect(t, "in use", p.inspect().InUse, 6, began, ttl) {
			return true
		}
		later.TTL = longLease
		if expect(t, "RenewPermits", p.renews(later), true, began, ttl) {
			return true
		}
		h.Advance(ttl - 40*time.Millisecond)
		p.state(5, 0)
		p.renew(doomed, false)
		p.renew(before, true)
		p.renew(later, true)
		p.renew(after, true)
		p.state(5, 0)
		p.release(later, true)
		p.state(4, 0)
		p.taken(p.request(5))
		p.granted(p.request(4))
		return false
	})
}

func manyExpire(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 1000)
	var (
		reqs []store.PermitRef
		held []bool
		live int
	)
	for i := range 300 {
		req := p.request(1 + i%3)
		lives := i%20 == 0
		if !lives {
			req.TTL = 300 * time.Millisecond
		}
		p.acquire(req, store.Granted)
		if i%40 == 0 {
			live += req.Weight
		} else {
			req.TTL = shortLease
		}
		reqs, held = append(reqs, permitOf(req)), append(held, lives)
	}
	h.Advance(350 * time.Millisecond)
	p.checkAll("RenewPermits", reqs, held)
	h.Advance(pastLease)
	p.state(live, 0)
	p.taken(p.request(p.capacity - live + 1))
	p.granted(p.request(p.capacity - live))
	p.state(p.capacity, 0)
	for i := range held {
		held[i] = i%40 == 0
	}
	p.checkAll("ReleasePermits", reqs, held)
	p.state(p.capacity-live, 0)
}

func releaseExpiredPermit(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	dead, next := dies(p.request(2)), p.request(2)
	p.granted(dead)
	h.Advance(pastLease)
	p.granted(next)
	p.release(dead, false)
	p.release(dead, false)
	p.state(2, 0)
	p.renew(next, true)
	p.acquire(dead, store.Withdrawn)
}

func renewsPermit(t *testing.T, h Harness[store.Permits]) {
	inTime(t, 300*time.Millisecond, func(ttl time.Duration) (late bool) {
		p := newPermits(t, h, 3)
		req := p.request(2)
		req.TTL = ttl
		began := time.Now()
		grant := p.granted(req)
		req.TTL = longLease
		if expect(t, "RenewPermits", p.renews(req), true, began, ttl) {
			return true
		}
		for range 3 {
			state := p.state(2, 0) // however often
			if len(state.Holders) != 1 || state.Holders[0].Fence != grant.Fence || state.Holders[0].Weight != 2 ||
				state.Holders[0].Remaining <= longLease-eventually || state.Holders[0].Remaining > longLease {
				t.Errorf("after a renewal to %v: %+v", longLease, state)
			}
			p.renew(req, true)
		}
		h.Advance(ttl * 7 / 6)
		p.renew(req, true)
		p.same(req, grant)
		p.taken(p.request(2))
		p.state(2, 0)
		p.release(req, true)
		p.state(0, 0)
		return false
	})
}

func renewExpiredPermit(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	dead, next := dies(p.request(2)), p.request(3)
	p.granted(dead)
	h.Advance(pastLease)
	dead.TTL = longLease
	p.renew(dead, false)
	p.state(0, 0)
	p.granted(tries(next))
	p.renew(dead, false)
	p.release(next, true)
	p.renew(dead, false)
	p.renew(next, false)
	p.state(0, 0)
	p.granted(tries(p.request(3)))
}

func renewPermits(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	p.checkAll("RenewPermits", nil, nil)
	const keys = 40 // with five requests each, more than a store may want to send at once
	p.key = "dead"
	dead := dies(p.request(1))
	p.granted(dead)
	h.Advance(pastLease)
	var (
		reqs []store.PermitRef
		want []bool
	)
	add := func(req store.PermitRequest, held bool) {
		reqs, want = append(reqs, permitOf(req)), append(want, held)
	}
	for i := range keys {
		p.key = fmt.Sprint("k", i)
		one, two, queued, released := p.request(1), p.request(2), p.request(1), p.request(1)
		p.acquire(released, store.Granted)
		p.release(released, true)
		p.acquire(one, store.Granted)
		p.acquire(two, store.Granted)
		p.queued(queued)
		add(queued, false)
		add(one, true)
		add(released, false)
		add(two, true)
		add(p.request(1), false) // unknown
	}
	add(dead, false)
	other := newPermits(t, h, 1)
	req := other.request(1)
	other.granted(req)
	add(req, true)
	p.checkAll("RenewPermits", reqs, want)
	p.checkAll("RenewPermits", reqs, want) // a repeat
	for i := range keys {
		p.key = fmt.Sprint("k", i)
		p.state(3, 1)
	}
}

func permitFences(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	seen := map[int64]string{}
	differs := func(how string, grant store.Grant) {
		t.Helper()
		if old, ok := seen[grant.Fence]; ok {
			t.Errorf("the fence %d after %s, as after %s", grant.Fence, how, old)
		}
		seen[grant.Fence] = how
	}
	for range 3 {
		one, two := p.request(1), p.request(2)
		differs("a release", p.granted(one))
		differs("a grant", p.granted(two))
		first, second := p.waits(p.request(1)), p.waits(p.request(1))
		p.release(two, true)
		differs("a release to the first", first.granted())
		differs("a release to the second", second.granted())
		for _, req := range []store.PermitRequest{one, first.req, second.req} {
			p.release(req, true)
		}
		h.Advance(time.Millisecond) // without permits, a store may derive fences from its clock alone
		differs("a release of all", p.granted(dies(p.request(3))))
		h.Advance(pastLease)
		last := p.request(3)
		differs("an expiry", p.granted(last))
		p.release(last, true)
		h.Advance(time.Millisecond)
	}
}

func fencesStay(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 9)
	first, second := p.request(1), p.request(2)
	grants := map[int64]store.Grant{}
	oldest := p.granted(first)
	for _, req := range []store.PermitRequest{first, second} {
		grant := p.acquire(req, store.Granted).Grant
		grants[grant.Fence] = grant
	}
	first.TTL /= 2
	p.same(first, oldest)
	third := p.acquire(p.request(1), store.Granted).Grant
	first.TTL *= 3
	p.renew(first, true)
	p.renew(second, true)
	fourth := p.acquire(p.request(1), store.Granted).Grant
	for _, grant := range []store.Grant{third, fourth} {
		grants[grant.Fence] = grant
	}
	if len(grants) != 4 {
		t.Errorf("%d fences for 4 permits: %+v", len(grants), grants)
	}
	p.state(5, 0)
}

func expiryGrants(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	dead, waits := dies(p.request(1)), p.request(2)
	stays := p.request(1)
	p.granted(stays)
	fence := p.granted(dead).Fence
	behind := p.request(1)
	p.acquireAny(waits)
	p.release(stays, true) // the machine may be so slow that the other permit has expired by now
	p.acquireAny(behind)
	w := p.await(waits)
	h.Advance(pastLease)
	if grant := w.granted(); grant.Fence == fence {
		t.Errorf("the fence %d of a permit that has expired", fence)
	}
	p.renew(dead, false)
	p.release(dead, false)
	p.state(2, 1)
	next := p.await(behind)
	p.waiting(2, next)
	p.release(waits, true)
	next.granted()
}

func expiryTooSmall(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 4)
	dead, stays := dies(p.request(1)), p.request(3)
	p.granted(stays)
	p.granted(dead)
	heavy, behind := p.waits(p.request(2)), p.waits(p.request(1))
	h.Advance(pastLease)
	p.renew(dead, false)
	p.waiting(3, heavy, behind)
	p.taken(p.request(1))
	p.release(stays, true)
	heavy.granted()
	behind.granted()
}

func expiriesAddUp(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 4)
	first, second, stays := p.request(1), p.request(2), p.request(1)
	first.TTL, second.TTL = 100*time.Millisecond, 400*time.Millisecond
	for _, req := range []store.PermitRequest{first, second, stays} {
		p.granted(req)
	}
	heavy, light := p.request(3), p.request(1)
	p.acquireAny(heavy) // it is queued, unless the machine is very slow
	p.acquireAny(light)
	w, behind := p.await(heavy), p.await(light)
	h.Advance(450 * time.Millisecond)
	w.granted()
	p.waiting(4, behind)
	p.release(stays, true)
	behind.granted()
}

func expiriesInTurn(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	for _, ttl := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond} {
		req := p.request(1)
		req.TTL = ttl
		p.acquire(req, store.Granted)
	}
	var waiters []*permitWaiter
	for range 3 {
		req := p.request(1)
		p.acquireAny(req) // it is queued, unless the machine is very slow
		waiters = append(waiters, p.await(req))
	}
	h.Advance(350 * time.Millisecond)
	for _, w := range waiters {
		w.ended() // without other calls to the store
	}
	for _, w := range waiters {
		w.granted()
	}
	p.state(3, 0)
}

func expiryBehindLeave(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	dead := p.request(2)
	dead.TTL = 300 * time.Millisecond
	p.granted(dead)
	first, second, third, fourth := p.request(2), p.request(1), p.request(1), p.request(1)
	for _, req := range []store.PermitRequest{first, second, third, fourth} {
		p.acquireAny(req) // it is queued, unless the machine is very slow
	}
	w1, w2, w3, w4 := p.await(first), p.await(second), p.await(third), p.await(fourth)
	if _, err := p.store.ReleasePermits(background(), []store.PermitRef{permitOf(first)}); err != nil {
		t.Fatal(err)
	}
	w1.ended()
	h.Advance(350 * time.Millisecond)
	w2.ended() // before other calls to the store
	w3.ended()
	w2.granted()
	w3.granted()
	p.waiting(2, w4)
	p.release(second, true)
	w4.granted()
}

func renewalKeepsOut(t *testing.T, h Harness[store.Permits]) {
	inTime(t, 400*time.Millisecond, func(ttl time.Duration) (late bool) {
		p := newPermits(t, h, 2)
		req := p.request(2)
		req.TTL = ttl
		began := time.Now()
		p.granted(req)
		waits := p.request(1)
		if expect(t, "AcquirePermits: outcome", p.acquireAny(waits).Outcome, store.Queued, began, ttl) {
			return true
		}
		req.TTL = longLease
		if expect(t, "RenewPermits", p.renews(req), true, began, ttl) {
			return true
		}
		w := p.await(waits)
		h.Advance(ttl * 9 / 8)
		p.waiting(2, w)
		p.renew(req, true)
		p.release(req, true)
		w.granted()
		return false
	})
}
