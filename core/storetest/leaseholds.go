package storetest

import (
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseHoldTests are the tests of Leases about the ends of holds, and about fences.
var leaseHoldTests = []leaseTest{
	{"a hold expires", leaseCase.holdExpires},
	{"renewal extends a hold", leaseCase.renewsHold},
	{"an expired hold is not revived by a renewal, nor ended by a release", leaseCase.lateAfterExpiry},
	{"holds beside each other end on their own", leaseCase.ownLeases},
	{"fences grow, however a hold ends", leaseCase.fencesGrow},
	{"downgrade reduces the weight", leaseCase.downgrades},
	{"downgrade renews the lease", leaseCase.downgradeRenews},
	{"downgrade of a missing hold reports false", leaseCase.downgradeNothing},
	{"a late step after a release has no effect", leaseCase.lateAfterRelease},
	{"revoke ends the hold with its fence", leaseCase.revokes},
	{"revoke ends one of several holds", leaseCase.revokesOne},
}

// semaphoreTests need a small capacity.
var semaphoreTests = []leaseTest{
	{"downgrade to any weight", leaseCase.downgradesPartly},
	{"many holds expire at once", leaseCase.manyExpire},
	{"expired holds delay no request, however many there are", leaseCase.allExpire},
	{"one call can make room in several keys", leaseCase.releaseTogether},
}

func (l leaseCase) holdExpires() {
	for _, weight := range []int{1, l.capacity} {
		l := l.another()
		dies := dying(l.request(weight))
		l.acquire(dies, store.Granted)
		l.h.Advance(pastLease)
		l.verify(dies, false)
		if found := l.list(); len(found) != 0 {
			l.t.Errorf("an expired hold in the list: %+v", found)
		}
		l.state(0, 0)
		l.granted(trying(l.whole()))
	}
}

func (l leaseCase) renewsHold() {
	for _, weight := range []int{1, l.capacity} {
		inTime(l.t, 300*time.Millisecond, func(ttl time.Duration) (late bool) {
			l := l.another()
			req := lasting(ttl, l.request(weight))
			began := time.Now()
			grant := l.granted(req)
			req.TTL = longLease
			if expect(l.t, "RenewLeases", l.renews(req), true, began, ttl) {
				return true
			}
			for range 3 { // however often
				if left := l.state(weight, 0).Holders[0].Remaining; left <= longLease-eventually || left > longLease {
					l.t.Errorf("after a renewal to %v it lasts for %v", longLease, left)
				}
				l.renew(req, true)
			}
			l.h.Advance(ttl * 7 / 6)
			l.renew(req, true)
			l.verify(req, true)
			l.same(req, grant)
			l.refused(l.whole())
			l.release(req)
			l.state(0, 0)
			return false
		})
	}
}

func (l leaseCase) lateAfterExpiry() {
	for _, weight := range []int{1, l.capacity} {
		l := l.another()
		dies, next := dying(l.request(weight)), l.whole()
		l.acquire(dies, store.Granted)
		l.h.Advance(pastLease)
		dies.TTL = longLease
		l.renew(dies, false)
		l.verify(dies, false)
		l.granted(trying(next))
		l.renew(dies, false)
		l.releaseLate(dies)
		l.releaseLate(dies)
		l.verify(next, true)
		l.release(next)
		l.renew(dies, false)
		l.renew(next, false)
		l.state(0, 0)
		l.granted(trying(l.whole()))
	}
}

func (l leaseCase) ownLeases() {
	inTime(l.t, 500*time.Millisecond, func(ttl time.Duration) (late bool) {
		l := l.another()
		before, dies, after := l.light(), dying(l.light()), l.light()
		later := lasting(ttl, l.light())
		began := time.Now()
		fences := map[int64]bool{}
		for _, req := range []store.LeaseRequest{before, dies, later, after} {
			fences[l.acquire(req, store.Granted).Fence] = true
		}
		if len(fences) != 4 {
			l.t.Errorf("%d fences for 4 holds", len(fences))
		}
		l.h.Advance(pastLease)
		l.renew(dies, false)
		if expect(l.t, "in use", l.inspect().InUse, 3, began, ttl) {
			return true
		}
		l.h.Advance(ttl)
		l.verify(later, false)
		l.verify(before, true)
		l.renew(after, true)
		l.state(2, 0)
		l.release(after)
		l.refused(l.whole())
		l.release(before)
		l.granted(trying(l.whole()))
		return false
	})
}

// follows checks the fence of a grant after other holds. Those of a lock grow, those of a semaphore
// differ.
func (l leaseCase) follows(grant store.Grant, last int64) {
	l.t.Helper()
	if grant.Fence == last || l.kind == aLock && grant.Fence < last {
		l.t.Errorf("fence %d, after %d", grant.Fence, last)
	}
}

func (l leaseCase) fencesGrow() {
	last := int64(0)
	grows := func(grant store.Grant) store.Grant {
		l.t.Helper()
		l.follows(grant, last)
		last = grant.LastFence
		l.h.Advance(time.Millisecond) // without holds, a semaphore's fences may come from the clock alone
		return grant
	}
	for _, fences := range []int{1, 7, store.MaxFences, 1} {
		w := l.whole()
		w.Fences = fences
		grows(l.granted(w)) // which checks their number
		next := l.waits(l.whole())
		l.release(w)
		l.revoke(grows(next.granted()).Fence, true)
		grows(l.acquire(dying(l.whole()), store.Granted).Grant)
		l.h.Advance(pastLease)
		w = l.whole()
		w.Fences = fences
		grows(l.granted(w))
		l.release(w)
		r := l.light()
		l.granted(r)
		l.release(r)
	}
}

func (l leaseCase) downgrades() {
	w := l.whole()
	w.Fences = 8
	grant := l.granted(w)
	r1, r2 := l.waits(l.light()), l.waits(l.light())
	w2, r3 := l.waits(l.whole()), l.waits(l.light())
	l.downgrade(w, 1, true)
	r1.granted()
	r2.granted()
	l.downgrade(w, 1, true)          // a repeat
	l.downgrade(w, l.capacity, true) // which never increases it
	w.Weight = 1
	// The renewal and the acquire were sent before the downgrade.
	l.renew(w, true)
	l.same(w, grant)
	l.waiting(3, w2, r3)
	l.verify(w, true)
	l.refused(l.light())
	l.release(r1.req)
	l.release(r2.req)
	l.waiting(1, w2, r3)
	l.renew(w, true)
	l.release(w)
	l.follows(w2.granted(), grant.LastFence)
	l.waiting(l.capacity, r3)
}

func (l leaseCase) downgradesPartly() {
	w := l.whole()
	l.granted(w)
	heavy, light := l.waits(l.request(2)), l.waits(l.light())
	l.downgrade(w, 3, true)
	l.waiting(3, heavy, light)
	l.downgrade(w, 2, true)
	heavy.granted()
	l.waiting(4, light)
	l.release(w)
	light.granted()
	l.state(3, 0)
}

func (l leaseCase) downgradeRenews() {
	inTime(l.t, 200*time.Millisecond, func(ttl time.Duration) (late bool) {
		l := l.another()
		w := lasting(ttl, l.whole())
		began := time.Now()
		l.granted(w)
		w.TTL = longLease
		held, err := able[store.LeaseDowngrader](l.t, l.store).DowngradeLease(background(), l.ref(w), 1)
		if err != nil {
			l.t.Fatal(err)
		}
		if expect(l.t, "DowngradeLease", held, true, began, ttl) {
			return true
		}
		l.h.Advance(ttl * 5 / 4)
		l.verify(w, true)
		l.granted(trying(l.light()))
		l.refused(l.whole())
		return false
	})
}

func (l leaseCase) downgradeNothing() {
	w, waits, dies := l.whole(), l.whole(), dying(l.whole())
	l.downgrade(w, 1, false)
	l.acquire(dies, store.Granted)
	l.h.Advance(pastLease)
	l.downgrade(dies, 1, false)
	l.granted(w)
	l.queued(waits)
	l.downgrade(waits, 1, false)
	l.downgrade(dies, 1, false)
	l.refused(l.light())
	l.release(w)
	l.downgrade(w, 1, false)
}

func (l leaseCase) lateAfterRelease() {
	w, next := l.whole(), l.whole()
	l.granted(w)
	l.release(w)
	late := func() {
		l.t.Helper()
		l.renew(w, false)
		l.downgrade(w, 1, false)
		l.releaseAgain(w)
	}
	late()
	grant := l.granted(next)
	late()
	l.same(next, grant)
	l.state(l.capacity, 0)
	l.refused(l.light())
}

func (l leaseCase) revokes() {
	notified, removed := make(chan string, 64), make(chan string, 64)
	revoker := able[store.LeaseRevoker](l.t, l.store)
	defer revoker.NotifyLost(func(id string) { notified <- id })()
	revoker.NotifyLost(func(id string) { removed <- id })()
	l.revoke(1, false)
	l.untilNotified(notified)
	w := l.whole()
	w.Fences = 8
	grant := l.granted(w)
	next := l.waits(l.whole())
	l.revoke(grant.Fence-1, false)
	l.revoke(grant.LastFence+1, false)
	l.verify(w, true)
	l.revoke(grant.LastFence, true)
	for late, id := time.After(eventually), ""; id != w.ID; { // a late push for another hold is possible
		select {
		case id = <-notified:
		case <-late:
			l.t.Fatal("its holder is not notified")
		}
	}
	if len(removed) != 0 {
		l.t.Error("a removed function is called")
	}
	next.granted()
	l.revoke(grant.LastFence, false)
	l.verify(w, false)
	l.renew(w, false)
	l.releaseLate(w)
	l.verify(next.req, true)
}

// untilNotified waits until the store, which may have to subscribe first, notifies holders of a
// revocation.
func (l leaseCase) untilNotified(notified <-chan string) {
	l.t.Helper()
	for deadline := time.Now().Add(eventually); ; {
		l.revoke(l.granted(l.whole()).Fence, true)
		select {
		case <-notified:
			return
		case <-time.After(pastLease):
		}
		if time.Now().After(deadline) {
			l.t.Fatal("no notification of a revocation")
		}
	}
}

func (l leaseCase) revokesOne() {
	kept, revoked := l.light(), l.light()
	l.granted(kept)
	l.revoke(l.granted(revoked).Fence, true)
	l.verify(revoked, false)
	l.verify(kept, true)
	l.state(1, 0)
	l.refused(l.whole())
}

func (l leaseCase) manyExpire() {
	l = l.of(1000)
	var (
		refs        []store.LeaseRef
		held, stays []bool
		live        int
	)
	for i := range 300 {
		req := l.request(1 + i%3)
		lives := i%20 == 0
		if !lives {
			req.TTL = 300 * time.Millisecond
		}
		l.acquire(req, store.Granted)
		if i%40 == 0 {
			live += req.Weight
		} else {
			req.TTL = shortLease
		}
		refs, held, stays = append(refs, l.ref(req)), append(held, lives), append(stays, i%40 == 0)
	}
	l.h.Advance(350 * time.Millisecond)
	for i, got := range l.renewAll(refs...) {
		if got != held[i] {
			l.t.Fatalf("renewal %d: %v, want %v", i, got, held[i])
		}
	}
	l.h.Advance(pastLease)
	l.state(live, 0)
	l.refused(l.request(l.capacity - live + 1))
	l.granted(l.request(l.capacity - live))
	l.state(l.capacity, 0)
	outcomes, err := l.store.ReleaseLeases(background(), refs)
	for i, stays := range stays {
		if err != nil || stays != (outcomes[i] == store.Released) {
			l.t.Fatalf("release %d: %v, %v, held is %v", i, outcomes, err, stays)
		}
	}
	l.state(l.capacity-live, 0)
}

func (l leaseCase) allExpire() {
	l = l.of(400)
	for range l.capacity {
		l.acquire(lasting(300*time.Millisecond, l.light()), store.Granted)
	}
	l.h.Advance(300*time.Millisecond + pastLease)
	l.granted(trying(l.whole()))
}

func (l leaseCase) releaseTogether() {
	other := l.another().of(1)
	a, b, c, d := l.light(), l.light(), l.request(2), other.light()
	for _, req := range []store.LeaseRequest{a, b, c} {
		l.granted(req)
	}
	other.granted(d)
	first, second, third := l.waits(l.request(2)), l.waits(l.light()), l.waits(l.request(2))
	elsewhere := other.waits(other.light())
	outcomes, err := l.store.ReleaseLeases(background(), []store.LeaseRef{l.ref(a), other.ref(d), l.ref(b), l.ref(second.req)})
	if err != nil || len(outcomes) != 4 || outcomes[0] != store.Released || outcomes[1] != store.Released ||
		outcomes[2] != store.Released || outcomes[3] != store.NotHeld {
		l.t.Fatalf("ReleaseLeases of three holds and one in the queue: %v, %v", outcomes, err)
	}
	first.granted()
	second.fails(store.ErrWithdrawn)
	elsewhere.granted()
	l.waiting(4, third)
	l.release(c)
	third.granted()
}
