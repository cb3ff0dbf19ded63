package storetest

import (
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseExpiryTests are the tests of Leases about waiters and holds that expire.
var leaseExpiryTests = []leaseTest{
	{"an expiry grants to the next waiter", leaseCase.expiryGrants},
	{"an expiry grants to waiters behind a withdrawn one", leaseCase.expiryBehindLeave},
	{"the last expiry admits a request for all", leaseCase.lastExpiry},
	{"an expiry with too little room grants nothing", leaseCase.expiryTooSmall},
	{"expiries add up", leaseCase.expiriesAddUp},
	{"successive expiries grant to successive waiters", leaseCase.expiriesInTurn},
	{"a renewal keeps waiters waiting", leaseCase.renewalKeepsOut},
}

// arrive queues requests and awaits them, or has them granted if the machine is slow.
func (l leaseCase) arrive(reqs ...store.LeaseRequest) (ws []*leaseWait) {
	l.t.Helper()
	for i := range reqs {
		reqs[i].Place = l.acquireAny(reqs[i]).Place
	}
	for _, req := range reqs {
		ws = append(ws, l.await(req))
	}
	return ws
}

func (l leaseCase) expiryGrants() {
	for _, weight := range []int{1, l.capacity} {
		l := l.another()
		dies := dying(l.whole())
		fence := l.acquire(dies, store.Granted).LastFence
		w := l.arrive(l.request(weight))[0]
		l.h.Advance(pastLease)
		l.follows(w.granted(), fence)
		l.renew(dies, false)
		l.releaseLate(dies)
		l.verify(w.req, true)
		l.state(weight, 0)
	}
}

func (l leaseCase) expiryBehindLeave() {
	l.granted(lasting(300*time.Millisecond, l.whole()))
	ws := l.arrive(l.whole(), l.light(), l.light(), l.whole())
	l.end(ws[0].req, store.Released, store.NotHeld)
	ws[0].ended()
	l.h.Advance(350 * time.Millisecond)
	ws[1].ended() // before other calls to the store
	ws[2].ended()
	ws[1].granted()
	ws[2].granted()
	l.waiting(2, ws[3])
	l.release(ws[1].req)
	l.release(ws[2].req)
	ws[3].granted()
}

func (l leaseCase) lastExpiry() {
	for range 3 {
		l.acquire(dying(l.light()), store.Granted)
	}
	w := l.arrive(l.whole())[0]
	l.h.Advance(pastLease)
	w.granted()
	l.state(l.capacity, 0)
}

func (l leaseCase) expiryTooSmall() {
	dies, stays := dying(l.light()), l.light()
	l.granted(stays)
	l.acquire(dies, store.Granted)
	ws := l.arrive(l.whole(), l.light())
	l.h.Advance(pastLease)
	l.renew(dies, false)
	l.waiting(1, ws...)
	l.refused(l.light())
	l.release(stays)
	ws[0].granted()
	l.waiting(l.capacity, ws[1])
}

func (l leaseCase) expiriesAddUp() {
	l.acquire(lasting(100*time.Millisecond, l.light()), store.Granted)
	l.acquire(lasting(400*time.Millisecond, l.light()), store.Granted)
	ws := l.arrive(l.whole(), l.light())
	l.h.Advance(450 * time.Millisecond)
	ws[0].granted()
	l.waiting(l.capacity, ws[1])
	l.release(ws[0].req)
	ws[1].granted()
}

func (l leaseCase) expiriesInTurn() {
	inTime(l.t, 100*time.Millisecond, func(ttl time.Duration) (late bool) {
		l := l.another()
		began := time.Now()
		l.acquire(lasting(ttl, l.whole()), store.Granted)
		ws := l.arrive(lasting(ttl, l.whole()), lasting(ttl, l.whole()), l.whole())
		if time.Since(began) >= ttl { // a grant may have expired before a call awaited it
			return true
		}
		l.h.Advance(ttl * 7 / 2)
		for _, w := range ws {
			w.ended() // without other calls to the store
		}
		ws[2].granted()
		l.state(l.capacity, 0)
		return false
	})
}

func (l leaseCase) renewalKeepsOut() {
	inTime(l.t, 400*time.Millisecond, func(ttl time.Duration) (late bool) {
		l := l.another()
		req, waits := lasting(ttl, l.whole()), l.light()
		began := time.Now()
		l.granted(req)
		if expect(l.t, "AcquireLease: outcome", l.acquireAny(waits).Outcome, store.Queued, began, ttl) {
			return true
		}
		req.TTL = longLease
		if expect(l.t, "RenewLeases", l.renews(req), true, began, ttl) {
			return true
		}
		w := l.await(waits)
		l.h.Advance(ttl * 9 / 8)
		l.waiting(l.capacity, w)
		l.renew(req, true)
		l.release(req)
		w.granted()
		return false
	})
}
