package storetest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseCases are the tests of Locks about the ends of holds, and about fences.
var leaseCases = []testCase[store.Locks]{
	{"a hold expires", holdExpires},
	{"release of an expired hold reports false", releaseExpired},
	{"the lock is closed during the lock-delay after an expiry", delayAfterExpiry},
	{"a release has no lock-delay", noDelayAfterRelease},
	{"renewal extends the hold", renewsHold},
	{"renewal of an expired hold does not revive it", renewExpired},
	{"renewals are reported one by one", renewBatch},
	{"readers share the lock", readersTogether},
	{"every reader has a lease of its own", readersLeases},
	{"fences grow, however a hold ends", fencesGrow},
	{"blocks of fences do not overlap", fenceBlocks},
	{"downgrade turns an exclusive hold into a shared one", downgrades},
	{"downgrade renews the lease", downgradeRenews},
	{"downgrade of a missing hold reports false", downgradeNothing},
	{"a late step does not undo a downgrade", lateAfterDowngrade},
	{"a late step after a release has no effect", lateAfterRelease},
	{"force ends the hold with its fence", forces},
	{"force ends one of several readers", forceReader},
}

func holdExpires(t *testing.T, h Harness[store.Locks]) {
	for _, shared := range []bool{false, true} {
		l := newLock(t, h)
		dies := short(l.exclusive())
		dies.Shared = shared
		l.granted(dies)
		h.Advance(pastLease)
		l.verify(dies, false)
		if state := l.inspect(); len(state.Holders) != 0 {
			t.Errorf("the holders of an expired lock: %+v", state.Holders)
		}
		for state, err := range l.store.ListLocks(background(), l.name) {
			if err != nil || len(state.Holders) != 0 {
				t.Errorf("an expired lock in the list: %+v, %v", state, err)
			}
		}
		l.granted(once(l.exclusive()))
	}
}

func releaseExpired(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	dies, next := short(l.exclusive()), l.exclusive()
	l.granted(dies)
	h.Advance(pastLease)
	l.granted(next)
	l.release(dies, false)
	l.release(dies, false)
	l.verify(next, true)
}

func delayAfterExpiry(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	dies := short(l.exclusive())
	dies.Delay = longLease
	l.granted(dies)
	h.Advance(pastLease)
	l.taken(l.exclusive())
	l.taken(l.shared())
	l.verify(dies, false)
	l.renew(dies, false)
	l.downgrade(dies, false)
	if state := l.inspect(); len(state.Holders) != 0 {
		t.Errorf("holders of a lock in its delay: %+v", state.Holders)
	}
	l.queued(l.exclusive())

	l = newLock(t, h)
	dies = short(l.exclusive())
	dies.Delay = shortLease
	l.granted(dies)
	waits := l.exclusive()
	l.acquireAny(waits) // it is queued, unless the machine is very slow
	w := l.await(waits)
	h.Advance(2 * pastLease)
	w.granted()
}

func noDelayAfterRelease(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	first, second := l.exclusive(), l.exclusive()
	first.Delay, second.Delay = longLease, longLease
	l.granted(first)
	l.release(first, true)
	fence := l.granted(once(second)).Fence
	w := l.waits(l.exclusive())
	l.force(fence, true)
	w.granted()
}

func renewsHold(t *testing.T, h Harness[store.Locks]) {
	for _, shared := range []bool{false, true} {
		inTime(t, 200*time.Millisecond, func(ttl time.Duration) (late bool) {
			l := newLock(t, h)
			req := l.exclusive()
			req.Shared, req.TTL = shared, ttl
			began := time.Now()
			grant := l.granted(req)
			req.TTL = longLease
			if expect(t, "RenewLocks", l.renews(req), true, began, ttl) {
				return true
			}
			h.Advance(ttl * 5 / 4)
			l.renew(req, true)
			l.verify(req, true)
			l.same(req, grant)
			if state := l.inspect(); len(state.Holders) != 1 || state.Holders[0].Remaining <= longLease-eventually ||
				state.Holders[0].Remaining > longLease {
				t.Errorf("after a renewal to %v: %+v", longLease, state)
			}
			return false
		})
	}
}

func renewExpired(t *testing.T, h Harness[store.Locks]) {
	for _, shared := range []bool{false, true} {
		l := newLock(t, h)
		dies, next := short(l.exclusive()), l.exclusive()
		dies.Shared = shared
		l.granted(dies)
		h.Advance(pastLease)
		dies.TTL = longLease
		l.renew(dies, false)
		l.verify(dies, false)
		l.granted(once(next))
		l.renew(dies, false)
		l.verify(next, true)
		l.release(next, true)
		l.renew(dies, false)
		l.renew(next, false)
		l.granted(once(l.exclusive()))
	}
}

func renewBatch(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	held, err := l.store.RenewLocks(background(), nil)
	if err != nil || len(held) != 0 {
		t.Errorf("RenewLocks of none: %v, %v", held, err)
	}
	var (
		reqs []store.LockRef
		want []bool
	)
	add := func(req store.LockRequest, held bool) {
		reqs, want = append(reqs, holdOf(req)), append(want, held)
	}
	for i := range 210 { // more than a store may want to send at once
		l.key = string(rune('a'+i%26)) + string(rune('a'+i/26))
		req := l.exclusive()
		switch i % 3 {
		case 0:
			l.acquire(req, store.Granted)
			add(req, true)
		case 1:
			add(req, false)
		case 2:
			l.acquire(l.exclusive(), store.Granted)
			l.queued(req)
			add(req, false)
		}
	}
	other := newLock(t, h)
	req := other.shared()
	other.granted(req)
	add(req, true)
	held, err = l.store.RenewLocks(background(), reqs)
	if err != nil || len(held) != len(reqs) {
		t.Fatalf("RenewLocks of %d: %d answers, %v", len(reqs), len(held), err)
	}
	for i := range reqs {
		if held[i] != want[i] {
			t.Errorf("renewal %d: %v, want %v", i, held[i], want[i])
		}
	}
}

func readersTogether(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	readers := []store.LockRequest{l.shared(), once(l.shared()), l.shared()}
	fences := map[int64]bool{}
	for _, r := range readers {
		fences[l.granted(r).Fence] = true
	}
	state := l.inspect()
	if len(state.Holders) != 3 {
		t.Fatalf("three readers have the lock: %+v", state)
	}
	for _, holder := range state.Holders {
		if !holder.Shared || !fences[holder.Fence] {
			t.Errorf("a reader is %+v", holder)
		}
		delete(fences, holder.Fence)
	}
	for _, r := range readers {
		l.taken(l.exclusive())
		l.release(r, true)
	}
	w := l.exclusive()
	l.granted(once(w))
	l.taken(l.shared())
}

func readersLeases(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	before, dies, after := l.shared(), short(l.shared()), l.shared()
	l.granted(before)
	l.granted(dies)
	l.granted(after)
	h.Advance(pastLease)
	l.verify(dies, false)
	l.renew(dies, false)
	l.verify(before, true)
	l.verify(after, true)
	if n := len(l.inspect().Holders); n != 2 {
		t.Errorf("%d readers have the lock, want 2", n)
	}
	l.release(after, true)
	l.taken(l.exclusive())
	l.release(before, true)
	l.granted(once(l.exclusive()))
}

func fencesGrow(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	last := int64(0)
	grows := func(how string, grant store.Grant) store.Grant {
		t.Helper()
		if grant.Fence <= last {
			t.Errorf("after %s: fence %d, after %d", how, grant.Fence, last)
		}
		last = grant.LastFence
		return grant
	}
	for range 3 {
		w := l.exclusive()
		w.Fences = 8
		grows("a release", l.granted(w))
		next := l.waits(l.exclusive())
		l.release(w, true)
		forced := grows("a release to a waiter", next.granted())
		l.force(forced.Fence, true)
		dies := short(l.exclusive())
		grows("force", l.granted(dies))
		h.Advance(pastLease)
		w = l.exclusive()
		grows("an expiry", l.granted(w))
		l.release(w, true)
		r := l.shared()
		l.granted(r)
		l.release(r, true)
	}
}

func fenceBlocks(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	last := int64(0)
	for range 4 {
		for _, n := range []int{1, 7, store.MaxFences} {
			w := l.exclusive()
			w.Fences = n
			grant := l.granted(w) // checks their number
			if grant.Fence <= last {
				t.Errorf("fence %d, after %d", grant.Fence, last)
			}
			last = grant.LastFence
			l.release(w, true)
		}
	}
}

func downgrades(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w := l.exclusive()
	w.Fences = 8
	grant := l.granted(w)
	r1, r2 := l.waits(l.shared()), l.waits(l.shared())
	w2, r3 := l.waits(l.exclusive()), l.waits(l.shared())
	l.downgrade(w, true)
	r1.granted()
	r2.granted()
	l.downgrade(w, true) // a repeat
	w.Shared = true
	l.wait(w2, r3)
	l.verify(w, true)
	kept := false
	for _, holder := range l.inspect().Holders {
		kept = kept || holder.Fence <= grant.Fence && grant.Fence <= holder.LastFence
		if !holder.Shared {
			t.Errorf("an exclusive hold after the downgrade: %+v", holder)
		}
	}
	if !kept {
		t.Errorf("no holder with fence %d: %+v", grant.Fence, l.inspect())
	}
	l.taken(l.shared())
	l.release(r1.req, true)
	l.release(r2.req, true)
	l.wait(w2, r3)
	l.renew(w, true)
	l.release(w, true)
	if last := w2.granted(); last.Fence <= grant.LastFence {
		t.Errorf("fence %d, after %d", last.Fence, grant.LastFence)
	}
	l.wait(r3)
}

func downgradeRenews(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w := l.exclusive()
	w.TTL = 200 * time.Millisecond
	l.granted(w)
	w.TTL = longLease
	l.downgrade(w, true)
	h.Advance(250 * time.Millisecond)
	l.verify(w, true)
	l.granted(once(l.shared()))
	l.taken(l.exclusive())
}

func downgradeNothing(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w, waits, dies := l.exclusive(), l.exclusive(), short(l.exclusive())
	l.downgrade(w, false)
	l.granted(dies)
	h.Advance(pastLease)
	l.downgrade(dies, false)
	l.granted(w)
	l.queued(waits)
	l.downgrade(waits, false)
	l.downgrade(dies, false)
	l.taken(l.shared())
	l.release(w, true)
	l.downgrade(w, false)
}

// The renewal and the acquire were sent while the hold was exclusive.
func lateAfterDowngrade(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w, r := l.exclusive(), l.shared()
	grant := l.granted(w)
	l.downgrade(w, true)
	l.granted(r)
	for range 2 {
		l.renew(w, true)
		l.same(w, grant)
		for _, holder := range l.inspect().Holders {
			if !holder.Shared {
				t.Fatalf("an exclusive hold after the downgrade: %+v", holder)
			}
		}
	}
	l.verify(r, true)
	l.granted(once(l.shared()))
}

func lateAfterRelease(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w, next := l.exclusive(), l.exclusive()
	l.granted(w)
	l.release(w, true)
	late := func() {
		t.Helper()
		l.renew(w, false)
		l.downgrade(w, false)
		l.acquire(w, store.Withdrawn)
		l.acquire(once(w), store.Withdrawn)
		l.release(w, true) // a repeat
	}
	late()
	grant := l.granted(next)
	late()
	l.same(next, grant)
	if n := len(l.inspect().Holders); n != 1 || l.inspect().Waiting != 0 {
		t.Errorf("late steps left %+v", l.inspect())
	}
	l.taken(l.shared())
}

func forces(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	notified, taken := make(chan string, 64), make(chan string, 64)
	defer l.store.NotifyLost(func(id string) { notified <- id })()
	l.store.NotifyLost(func(id string) { taken <- id })()
	l.force(1, false)
	l.untilNotified(notified)
	w := l.exclusive()
	w.Fences = 8
	grant := l.granted(w)
	next := l.waits(l.exclusive())
	l.force(grant.Fence-1, false)
	l.force(grant.LastFence+1, false)
	l.verify(w, true)
	l.force(grant.LastFence, true)
	for late, id := time.After(eventually), ""; id != w.ID; { // a late push for another hold is possible
		select {
		case id = <-notified:
		case <-late:
			t.Fatal("its holder is not notified")
		}
	}
	if len(taken) != 0 {
		t.Error("a removed function is called")
	}
	next.granted()
	l.force(grant.LastFence, false)
	l.verify(w, false)
	l.renew(w, false)
	l.acquire(w, store.Withdrawn) // as if it had been released
	l.release(w, false)
	l.verify(next.req, true)
}

// untilNotified waits until the store, which may have to subscribe first, notifies holders of a
// forced release.
func (l lockCase) untilNotified(notified <-chan string) {
	l.t.Helper()
	for deadline := time.Now().Add(eventually); ; {
		w := l.exclusive()
		l.force(l.granted(w).Fence, true)
		select {
		case <-notified:
			return
		case <-time.After(pastLease):
		}
		if time.Now().After(deadline) {
			l.t.Fatal("no notification of a forced release")
		}
	}
}

func forceReader(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	kept, forced := l.shared(), l.shared()
	l.granted(kept)
	l.force(l.granted(forced).Fence, true)
	l.verify(forced, false)
	l.verify(kept, true)
	l.taken(l.exclusive())
}
