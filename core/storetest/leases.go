package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Leases is the contract of store.Leases. Tests of waiters that no call awaits wait until the store
// has dropped them, and advance the clock by up to eight seconds.
func Leases[S store.Leases](t *testing.T, run Runner[S]) { leases(t, run) }

func leases[S any](t *testing.T, run Runner[S]) {
	var cases []testCase[store.Leases]
	for _, tests := range [][]leaseTest{leaseTests, leaseHoldTests, leaseQueueTests, leaseExpiryTests, leaseInspections, leaseStorms} {
		cases = append(cases, on(tests, aLock, aSemaphore)...)
	}
	cases = append(cases, on(semaphoreTests, aSemaphore)...)
	runAll(t, run, append(cases, scripted(leaseScripts)...))
}

var leaseTests = []leaseTest{
	{"free capacity is granted", leaseCase.grantsFree},
	{"a held key is refused, or queued for", leaseCase.heldIsTaken},
	{"acquire recognises its own repeat", leaseCase.acquireTwice},
	{"the repeat of an acquire returns no more than its lease", leaseCase.acquireLater},
	{"release recognises its own repeat", leaseCase.releaseTwice},
	{"the release of an acquire whose caller has left is final", leaseCase.releaseAfterLeaving},
	{"a release by another ID changes nothing", leaseCase.releaseByStranger},
	{"a hold is an ID and its fence", leaseCase.anotherFence},
	{"a withdrawal by ID alone ends a hold", leaseCase.withdrawnByID},
	{"releases are reported one by one", leaseCase.releaseBatch},
	{"renewals are reported one by one", leaseCase.renewBatch},
	{"list yields keys that are held or waited for", leaseCase.lists},
	{"names, keys and kinds are separate", leaseCase.apart},
	{"keys may have any bytes", leaseCase.oddKeys},
	{"a cancelled context is its error", leaseCase.cancelled},
	{"a store after shutdown refuses new requests", leaseCase.shutDown},
	{"a closed store is unavailable", leaseCase.closed},
}

func (l leaseCase) grantsFree() {
	w, waits := l.whole(), l.whole()
	l.verify(w, false)
	l.granted(w)
	l.queued(waits)
	for range 2 {
		l.verify(w, true)
		l.verify(waits, false)
		l.verify(l.whole(), false)
	}
	l.withdraw(waits)
	l.release(w)
	l.verify(w, false)
	l.granted(trying(l.whole()))
}

func (l leaseCase) heldIsTaken() {
	for _, held := range []int{1, l.capacity} {
		l := l.another()
		w := l.request(held)
		w.Label = "me\x00\xff"
		l.granted(w)
		heavy, light := l.whole(), l.light()
		for waiting, req := range []store.LeaseRequest{heavy, light, trying(l.whole()), trying(l.light())} {
			want := store.Taken
			if req.Queue {
				want = store.Queued
			}
			waiting = min(waiting, 2) // a light one would fit, but another request is first
			if reply := l.acquire(req, want); reply.InUse != held || reply.Waiting != waiting || reply.QueueFull ||
				reply.Holder != w.Label || !l.long(reply) || req.Queue != (reply.Place > 0) {
				l.t.Errorf("%d in use and %d waiting: %+v", held, waiting, reply)
			}
		}
		l.state(held, 2)
	}
}

func (l leaseCase) acquireTwice() {
	for _, weight := range []int{1, l.capacity} {
		l := l.another()
		req, other := l.request(weight), l.whole()
		req.Fences = 8
		grant := l.granted(req)
		for range 2 {
			l.same(req, grant)
			l.same(trying(lasting(req.TTL/2, req)), grant)
			if reply := l.queued(other); reply.Waiting != 0 || reply.InUse != weight {
				l.t.Errorf("%d in use, and one waiter: %+v", weight, reply)
			}
		}
		l.state(weight, 1)
		if l.kind == aSemaphore {
			lower := req
			lower.Capacity = weight
			l.same(lower, grant) // full or not, it holds
		}
		l.release(req)
		l.await(other).granted()
		l.state(l.capacity, 0)
	}
}

// acquireLater repeats a request after some time: its hold may be extended or not, but its holder's
// deadline must not be after the store's.
func (l leaseCase) acquireLater() {
	req := l.whole()
	grant := l.granted(req)
	before := time.Now()
	l.h.Advance(300 * time.Millisecond)
	if time.Since(before) < 300*time.Millisecond {
		return // the store's clock is not that of the process
	}
	l.same(req, grant)
	l.state(l.capacity, 0)
}

func (l leaseCase) releaseTwice() {
	first, second := l.whole(), l.whole()
	l.granted(first)
	l.release(first)
	l.releaseAgain(first)
	l.granted(second)
	l.releaseAgain(first)
	l.verify(second, true)
	stranger, queued := l.whole(), l.light()
	l.releaseLate(stranger)
	l.releaseLate(stranger)
	l.queued(queued)
	l.withdraw(queued)
	l.releaseLate(queued)
	l.state(l.capacity, 0)
}

func (l leaseCase) releaseAfterLeaving() {
	for range 20 {
		ctx, cancel := context.WithCancel(background())
		var left sync.WaitGroup
		left.Go(cancel)
		req := l.whole()
		_, _ = l.store.AcquireLease(ctx, req)
		left.Wait()
		l.end(req, store.Released, store.NotHeld, store.ReleaseUnknown)
	}
	l.granted(trying(l.whole()))
}

func (l leaseCase) releaseByStranger() {
	held := l.whole()
	l.granted(held)
	l.releaseLate(l.whole())
	l.releaseLate(l.light())
	elsewhere := held
	elsewhere.Key += "k"
	l.releaseLate(elsewhere)
	l.verify(held, true)
	l.state(l.capacity, 0)
	l.refused(l.light())
}

func (l leaseCase) anotherFence() {
	req := l.whole()
	req.Fences = 8
	grant := l.granted(req)
	waiter := l.waits(l.light())
	for _, fence := range []int64{0, grant.Fence - 1, grant.Fence + 1, grant.LastFence + 1} {
		l.fences.Store(req.ID, fence)
		l.verify(req, false)
		l.renew(req, false)
		l.downgrade(req, 1, false)
	}
	l.fences.Store(req.ID, grant.Fence)
	l.waiting(l.capacity, waiter)
	l.verify(req, true)
	l.renew(req, true)
	l.same(req, grant)
	l.fences.Store(req.ID, grant.Fence+1)
	l.releaseLate(req) // it ends the request, which did not hold with this fence
	waiter.granted()
}

func (l leaseCase) withdrawnByID() {
	req, next := l.whole(), l.light()
	l.granted(req)
	w := l.waits(next)
	l.fences.Delete(req.ID) // as if the reply had been lost
	l.release(req)
	w.granted()
	l.releaseAgain(req)
	l.state(1, 0)
}

func (l leaseCase) releaseBatch() {
	if outcomes, err := l.store.ReleaseLeases(background(), nil); err != nil || len(outcomes) != 0 {
		l.t.Errorf("ReleaseLeases of none: %v, %v", outcomes, err)
	}
	const keys = 40 // with six requests each, more than a store may want to send at once
	var dead []store.LeaseRequest
	for i := range keys {
		l.key = fmt.Sprint("k", i)
		dead = append(dead, dying(l.light()))
		l.acquire(dead[i], store.Granted)
	}
	l.h.Advance(pastLease)
	var (
		refs []store.LeaseRef
		want [][]store.ReleaseOutcome
	)
	late := []store.ReleaseOutcome{store.NotHeld, store.ReleaseUnknown}
	add := func(req store.LeaseRequest, outcomes ...store.ReleaseOutcome) {
		refs, want = append(refs, l.ref(req)), append(want, outcomes)
	}
	for i := range keys {
		l.key = fmt.Sprint("k", i)
		before, held, queued := l.whole(), l.light(), l.whole()
		l.acquire(before, store.Granted)
		l.release(before)
		l.acquire(held, store.Granted)
		l.queued(queued)
		if i%2 == 0 {
			add(queued, store.NotHeld)
		}
		add(before, store.Released, store.ReleaseUnknown)
		refs[len(refs)-1].Repeated = true
		add(held, store.Released)
		add(l.light(), late...) // unknown
		add(dead[i], late...)
		add(held, store.Released, store.ReleaseUnknown) // twice in one call
		refs[len(refs)-1].Repeated = true
		if i%2 == 1 {
			add(queued, store.NotHeld, store.Released) // it has been granted, perhaps
		}
	}
	for again := range 2 {
		outcomes, err := l.store.ReleaseLeases(background(), refs)
		if err != nil || len(outcomes) != len(refs) {
			l.t.Fatalf("ReleaseLeases of %d: %d answers, %v", len(refs), len(outcomes), err)
		}
		for i, outcome := range outcomes {
			refs[i].Repeated = true
			if !slices.Contains(want[i], outcome) && (again == 0 || outcome != store.ReleaseUnknown) {
				l.t.Errorf("ReleaseLeases: number %d is %v, want one of %v", i, outcome, want[i])
			}
		}
	}
	if found := l.list(); len(found) != 0 {
		l.t.Errorf("after everything was released: %+v", found)
	}
	for i := range keys {
		l.key = fmt.Sprint("k", i)
		l.acquire(trying(l.whole()), store.Granted)
	}
}

func (l leaseCase) renewBatch() {
	l.renewAll()
	l.key = "dead"
	dead := dying(l.light())
	l.granted(dead)
	l.h.Advance(pastLease)
	var (
		refs []store.LeaseRef
		want []bool
	)
	add := func(req store.LeaseRequest, held bool) { refs, want = append(refs, l.ref(req)), append(want, held) }
	const keys = 53 // with four requests each, more than a store may want to send at once
	for i := range keys {
		l.key = fmt.Sprint("k", i)
		one, two, released := l.light(), l.light(), l.whole()
		l.acquire(released, store.Granted)
		l.release(released)
		l.acquire(one, store.Granted)
		l.acquire(two, store.Granted)
		add(one, true)
		add(released, false)
		add(two, true)
		add(l.light(), false) // unknown
	}
	const step = keys / 2
	for i := 0; i < keys; i += step { // few, and late: a place that no call awaits is kept for seconds
		l.key = fmt.Sprint("k", i)
		queued := l.whole()
		l.queued(queued)
		add(queued, false)
	}
	add(dead, false)
	other := l.another()
	req := other.light()
	other.granted(req)
	refs, want = append(refs, other.ref(req)), append(want, true)
	for range 2 {
		if held := l.renewAll(refs...); !slices.Equal(held, want) {
			l.t.Errorf("RenewLeases: %v, want %v", held, want)
		}
	}
	for i := 0; i < keys; i += step {
		l.key = fmt.Sprint("k", i)
		l.state(2, 1)
	}
	for i := range keys {
		l.key = fmt.Sprint("k", i)
		if state := l.inspect(); state.InUse != 2 {
			l.t.Errorf("want 2 in use: %+v", state)
		}
	}
}

func (l leaseCase) lists() {
	for _, name := range []string{l.kind.prefix + unique("other"), l.name + "x", l.name[:len(l.name)-1]} {
		other := l
		other.name = name
		other.granted(other.light())
	}
	keys := []string{"a", "b", "\x00{}\xff", strings.Repeat("k", 1024)}
	for _, key := range keys {
		l.key = key
		l.granted(l.whole())
	}
	l.queued(l.light())
	l.key = "free"
	released := l.whole()
	l.granted(released)
	l.release(released)

	found := l.list()
	for i, key := range keys {
		waiting := i / (len(keys) - 1)
		if state := found[key]; state.InUse != l.capacity || state.Waiting != waiting || len(state.Holders) != 1 || len(state.Waiters) != waiting {
			l.t.Errorf("key %q: %+v, want one holder and %d waiting", key, state, waiting)
		}
	}
	if len(found) != len(keys) {
		l.t.Errorf("%d keys, want %d: %+v", len(found), len(keys), found)
	}
	for _, err := range able[store.LeaseLister](l.t, l.store).ListLeases(background(), l.name) {
		if err != nil {
			l.t.Errorf("ListLeases: %v", err)
		}
		break // the iteration may stop early
	}
	if found := l.another().list(); len(found) != 0 {
		l.t.Errorf("a name without keys: %+v", found)
	}
}

func (l leaseCase) apart() {
	id := newOwner()
	for _, suffix := range [][2]string{{"", "abc"}, {"a", "bc"}, {"ab", "c"}, {"", "c"}, {"a", "abc"}, {"c", "ab"}} {
		for _, kind := range []leaseKind{aLock, aSemaphore} {
			one := l.of(kind.capacity)
			one.name, one.key = kind.prefix+l.name[1:]+suffix[0], suffix[1]
			one.state(0, 0)
			req := one.whole()
			req.ID = id // names a request of the key only
			one.granted(req)
			one.refused(one.light())
		}
	}
}

func (l leaseCase) oddKeys() {
	for _, key := range []string{
		"{a}", "a}{b", "{}", "\x00", "ü\xff", "a b\r\n", "*", ":", "a:b", strings.Repeat("x", 1024), strings.Repeat("\xff", 1024),
	} {
		l.key = key
		req := l.whole()
		l.granted(req)
		next := l.waits(l.light())
		l.renew(req, true)
		l.release(req)
		l.revoke(next.granted().Fence, true)
		l.granted(l.light())
		l.state(1, 0) // and stays held, as those of the other keys do
	}
}

// calls calls every method with a context, and passes its error.
func (l leaseCase) calls(ctx context.Context, req store.LeaseRequest, want func(method string, err error)) {
	_, err := l.store.AcquireLease(ctx, req)
	want("AcquireLease", err)
	_, err = l.store.AwaitLease(ctx, req)
	want("AwaitLease", err)
	_, err = l.store.RenewLeases(ctx, []store.LeaseRef{l.ref(req)})
	want("RenewLeases", err)
	_, err = l.store.ReleaseLeases(ctx, []store.LeaseRef{l.ref(req)})
	want("ReleaseLeases", err)
	_, err = store.Verify(ctx, l.store, l.ref(req))
	want("VerifyLease", err)
	if able, ok := l.store.(store.LeaseDowngrader); ok {
		_, err = able.DowngradeLease(ctx, l.ref(req), 1)
		want("DowngradeLease", err)
	}
	if able, ok := l.store.(store.LeaseRevoker); ok {
		_, err = able.RevokeLease(ctx, req.Name, req.Key, 1)
		want("RevokeLease", err)
	}
	if able, ok := l.store.(store.LeaseLister); ok {
		_, err = able.InspectLease(ctx, req.Name, req.Key)
		want("InspectLease", err)
		err = errors.New("nothing was yielded")
		for _, err = range able.ListLeases(ctx, req.Name) {
			if err != nil {
				break
			}
		}
		want("ListLeases", err)
	}
}

func (l leaseCase) cancelled() {
	ctx, cancel := context.WithCancel(background())
	cancel()
	l.calls(ctx, l.whole(), func(method string, err error) {
		if !errors.Is(err, context.Canceled) {
			l.t.Errorf("%s with a cancelled context: %v", method, err)
		}
	})
	l.granted(l.whole())
}

func (l leaseCase) shutDown() {
	held, waiting := l.whole(), l.light()
	l.granted(held)
	w := l.waits(waiting)
	shutsDown(l.t, l.store)
	w.fails(store.ErrClosed)
	_, err := l.store.AcquireLease(background(), l.light())
	wantErrClosed(l.t, err)
	_, err = l.store.AwaitLease(background(), waiting)
	wantErrClosed(l.t, err)
	l.renew(held, true)
	l.withdraw(waiting)
	l.release(held)
}

func (l leaseCase) closed() {
	held := l.whole()
	l.granted(held)
	ws := []*leaseWait{l.waits(l.light()), l.waits(l.whole())}
	closes(l.t, l.store)
	for _, w := range ws {
		w.ended()
		wantErrClosed(l.t, w.err)
	}
	l.calls(background(), held, func(_ string, err error) { wantErrClosed(l.t, err) })
}
