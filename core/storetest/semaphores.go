package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Permits is the contract of store.Permits. One of its tests waits until the store has dropped a
// dead waiter, and advances the clock by up to eight seconds.
func Permits[S store.Permits](t *testing.T, run Runner[S]) {
	runAll(t, run, []testCase[store.Permits]{
		{"permits are granted up to the capacity", permitsUpToCapacity},
		{"a request that does not fit is busy", fullIsTaken},
		{"the remaining time of a full semaphore is that of its first permit", remainingTime},
		{"the largest capacity can be used up", largestCapacity},
		{"acquire recognises its own repeat", acquirePermitTwice},
		{"the repeat of an acquire returns no more than its lease", acquirePermitLater},
		{"release recognises its own repeat", releasePermitTwice},
		{"an acquire after its own release is refused", acquirePermitAfterRelease},
		{"a release by another ID changes nothing", releasePermitByStranger},
		{"releases are reported one by one", releaseBatch},
		{"one release can make room for several", releaseTogether},
		{"inspect returns the use", inspectsPermits},
		{"inspect lists a maximum of permits", inspectsMany},
		{"list yields semaphores with permits or waiters", listsPermits},
		{"names and keys are separate", permitsApart},
		{"a lock with the same name and key is separate", lockIsApart},
		{"keys may have any bytes", oddPermitKeys},
		{"a cancelled context is its error", cancelledPermits},
		{"a store after shutdown refuses new requests", shutDownPermits},
		{"a closed store is unavailable", closedPermits},
	})
	runAll(t, run, permitLeaseCases)
	runAll(t, run, permitQueueCases)
	runAll(t, run, permitCapacityCases)
	runAll(t, run, permitStormCases)
}

func permitsUpToCapacity(t *testing.T, h Harness[store.Permits]) {
	for _, weights := range [][]int{{1}, {1, 1, 1}, {3}, {2, 1}, {1, 2}, {100, 1, 99}, {2, 2, 1, 3, 1}} {
		capacity := 0
		for _, weight := range weights {
			capacity += weight
		}
		p := newPermits(t, h, capacity)
		var reqs []store.PermitRequest
		inUse := 0
		for _, weight := range weights {
			p.state(inUse, 0)
			req := p.request(weight)
			p.granted(req)
			reqs = append(reqs, req)
			inUse += weight
		}
		for i, req := range reqs {
			p.taken(p.request(1))
			p.release(req, true)
			p.state(capacity-weights[i], 0)
			if weights[i] < capacity {
				p.taken(p.request(weights[i] + 1))
			}
			p.granted(tries(p.request(weights[i])))
			p.state(capacity, 0)
		}
	}
}

func fullIsTaken(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 5)
	p.granted(p.request(3))
	p.granted(p.request(1))
	for _, step := range []struct {
		req     store.PermitRequest
		waiting int
	}{
		{tries(p.request(2)), 0},
		{p.request(2), 0},
		{tries(p.request(2)), 1},
		{tries(p.request(1)), 1}, // it would fit, but another request is first
		{p.request(1), 1},
		{p.request(5), 2},
		{tries(p.request(5)), 3},
	} {
		want := store.Taken
		if step.req.Queue {
			want = store.Queued
		}
		reply := p.acquire(step.req, want)
		if reply.InUse != 4 || reply.Waiting != step.waiting || reply.QueueFull ||
			reply.Remaining <= longLease-eventually || reply.Remaining > longLease {
			t.Errorf("4 are in use and %d wait: %+v", step.waiting, reply)
		}
	}
	p.state(4, 3)
}

func remainingTime(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	first, second, third := p.request(1), p.request(1), p.request(1)
	second.TTL = longLease / 2
	p.granted(first)
	p.granted(second)
	p.granted(third)
	remains := func(want time.Duration) {
		t.Helper()
		if got := p.acquire(tries(p.request(1)), store.Taken).Remaining; got <= want-eventually || got > want {
			t.Errorf("the first permit expires in %v, want %v", got, want)
		}
	}
	remains(longLease / 2)
	second.TTL = 3 * longLease
	p.renew(second, true)
	remains(longLease)
	first.TTL = 2 * longLease
	p.renew(first, true)
	remains(longLease)
	p.release(third, true)
	p.queued(p.request(2))
	remains(2 * longLease)
}

func largestCapacity(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, store.MaxCapacity)
	all := p.request(store.MaxCapacity)
	p.granted(all)
	p.state(store.MaxCapacity, 0)
	p.taken(p.request(1))
	p.taken(p.request(store.MaxCapacity))
	w := p.waits(p.request(store.MaxCapacity - 1))
	p.release(all, true)
	w.granted()
	p.granted(p.request(1))
	p.taken(p.request(1))
}

func acquirePermitTwice(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	req, other := p.request(2), p.request(3)
	grant := p.granted(req)
	for range 2 {
		p.same(req, grant)
		p.same(tries(req), grant)
		if reply := p.queued(other); reply.Waiting != 0 || reply.InUse != 2 {
			t.Errorf("2 are in use, and there is one waiter: %+v", reply)
		}
	}
	p.state(2, 1)
	lower := req
	lower.Capacity = 2
	p.same(lower, grant) // full or not, it has its permit
	p.state(2, 1)
	p.release(req, true)
	p.await(other).granted()
	p.state(3, 0)
}

// acquirePermitLater repeats a request after some time: its permit may be extended or not, but its
// holder's deadline must not be after the store's.
func acquirePermitLater(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 1)
	req := p.request(1)
	grant := p.granted(req)
	before := time.Now()
	h.Advance(300 * time.Millisecond)
	if time.Since(before) < 300*time.Millisecond {
		return // the store's clock is not that of the process
	}
	p.same(req, grant)
	p.state(1, 0)
}

func releasePermitTwice(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	first, second := p.request(2), p.request(2)
	p.granted(first)
	p.release(first, true)
	p.release(first, true)
	p.granted(second)
	p.release(first, true)
	p.state(2, 0)
	p.renew(second, true)
	stranger := p.request(1)
	p.release(stranger, false)
	p.release(stranger, false)
	queued := p.request(2)
	p.queued(queued)
	p.release(queued, false)
	p.release(queued, false)
	p.state(2, 0)
}

func acquirePermitAfterRelease(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	early, held, waited := p.request(1), p.request(2), p.request(1)
	p.release(early, false)
	p.acquire(early, store.Withdrawn)
	p.granted(held)
	p.queued(waited)
	p.release(waited, false)
	p.acquire(waited, store.Withdrawn)
	p.release(held, true)
	for _, req := range []store.PermitRequest{early, held, waited} {
		p.acquire(req, store.Withdrawn)
		p.acquire(tries(req), store.Withdrawn)
		req.Barging, req.Capacity = true, 100
		p.acquire(req, store.Withdrawn)
		p.await(req).fails(store.ErrWithdrawn)
		p.renew(req, false)
	}
	p.state(0, 0)
}

func releasePermitByStranger(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	held := p.request(2)
	p.granted(held)
	p.release(p.request(2), false)
	elsewhere := held
	elsewhere.Key += "k"
	p.release(elsewhere, false)
	p.state(2, 0)
	p.renew(held, true)
	p.taken(p.request(1))
}

func releaseBatch(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	if held, err := p.store.ReleasePermits(background(), nil); err != nil || len(held) != 0 {
		t.Errorf("ReleasePermits of none: %v, %v", held, err)
	}
	const keys = 40 // with six requests each, more than a store may want to send at once
	var dead []store.PermitRequest
	for i := range keys {
		p.key = fmt.Sprint("k", i)
		req := dies(p.request(1))
		p.acquire(req, store.Granted)
		dead = append(dead, req)
	}
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
		before, held, queued := p.request(3), p.request(2), p.request(3)
		p.acquire(before, store.Granted)
		p.release(before, true)
		p.acquire(held, store.Granted)
		p.queued(queued)
		if i%2 == 0 {
			add(queued, false)
		}
		add(before, true)
		add(held, true)
		add(p.request(1), false) // unknown
		add(dead[i], false)
		add(held, true) // twice in one call
		if i%2 == 1 {
			add(queued, false) // its permit is reserved, but not claimed
		}
	}
	p.checkAll("ReleasePermits", reqs, want)
	p.checkAll("ReleasePermits", reqs, want) // a repeat
	for state, err := range p.store.ListPermits(background(), p.name) {
		t.Errorf("after everything was released: %+v, %v", state, err)
	}
	for i := range keys {
		p.key = fmt.Sprint("k", i)
		p.acquire(tries(p.request(3)), store.Granted)
	}
}

func releaseTogether(t *testing.T, h Harness[store.Permits]) {
	p, other := newPermits(t, h, 4), newPermits(t, h, 1)
	a, b, c, d := p.request(1), p.request(1), p.request(2), other.request(1)
	for _, req := range []store.PermitRequest{a, b, c} {
		p.granted(req)
	}
	other.granted(d)
	first, second, third := p.waits(p.request(2)), p.waits(p.request(1)), p.waits(p.request(2))
	elsewhere := other.waits(other.request(1))
	held, err := p.store.ReleasePermits(background(), []store.PermitRef{permitOf(a), permitOf(d), permitOf(b), permitOf(second.req)})
	if err != nil || fmt.Sprint(held) != "[true true true false]" {
		t.Fatalf("ReleasePermits of three permits and one in the queue: %v, %v", held, err)
	}
	first.granted()
	second.fails(store.ErrWithdrawn)
	elsewhere.granted()
	p.waiting(4, third)
	p.release(c, true)
	third.granted()
}

func inspectsPermits(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 9)
	p.state(0, 0)
	type held struct {
		weight int
		meta   string
		ttl    time.Duration
	}
	want := map[int64]held{}
	for _, permit := range []held{
		{1, "", longLease},
		{3, strings.Repeat("h\x00\xff ", store.MaxHolder/4), longLease / 2},
		{2, "ü:{}", longLease},
	} {
		req := p.request(permit.weight)
		req.Holder, req.TTL = permit.meta, permit.ttl
		want[p.granted(req).Fence] = permit
	}
	p.queued(p.request(4))
	p.queued(p.request(1))
	state := p.state(6, 2)
	if len(state.Holders) != len(want) {
		t.Fatalf("%d permits, and %d were granted: %+v", len(state.Holders), len(want), state)
	}
	for _, got := range state.Holders {
		permit := want[got.Fence]
		if got.Weight != permit.weight || got.Meta != permit.meta ||
			got.Remaining <= permit.ttl-eventually || got.Remaining > permit.ttl {
			t.Errorf("the permit is %+v, granted %+v", got, permit)
		}
		delete(want, got.Fence)
	}
}

func inspectsMany(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 1000)
	const more = store.MaxHolders + 20
	fences := map[int64]bool{}
	for range more {
		fences[p.acquire(p.request(2), store.Granted).Fence] = true
	}
	if len(fences) != more {
		t.Errorf("%d fences for %d permits", len(fences), more)
	}
	state := p.inspect()
	if state.InUse != 2*more || len(state.Holders) != store.MaxHolders {
		t.Errorf("%d in use by %d permits, want %d by %d", state.InUse, len(state.Holders), 2*more, store.MaxHolders)
	}
	for _, holder := range state.Holders {
		if holder.Weight != 2 || !fences[holder.Fence] {
			t.Errorf("a permit is %+v", holder)
		}
		delete(fences, holder.Fence)
	}
	for state, err := range p.store.ListPermits(background(), p.name) {
		if err != nil || state.InUse != 2*more || len(state.Holders) > store.MaxHolders {
			t.Errorf("%d in use by %d permits in the list, %v", state.InUse, len(state.Holders), err)
		}
	}
}

func listsPermits(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 4)
	for _, name := range []string{unique("semaphore"), p.name + "x", p.name[:len(p.name)-1]} {
		other := p
		other.name = name
		other.granted(other.request(1))
	}
	keys := []string{"a", "b", "\x00{}\xff", strings.Repeat("k", 1024)}
	for i, key := range keys {
		p.key = key
		p.granted(p.request(i + 1))
	}
	p.queued(p.request(1))
	p.key = "free"
	released := p.request(1)
	p.granted(released)
	p.release(released, true)

	found := map[string]store.SemaphoreState{}
	for state, err := range p.store.ListPermits(background(), p.name) {
		if err != nil {
			t.Fatalf("ListPermits: %v", err)
		}
		found[state.Key] = state
	}
	for i, key := range keys {
		state := found[key]
		if waiting := i / (len(keys) - 1); state.InUse != i+1 || state.Waiting != waiting || len(state.Holders) != 1 {
			t.Errorf("key %q: %+v, want %d in use and %d waiting", key, state, i+1, waiting)
		}
	}
	if len(found) != len(keys) {
		t.Errorf("%d semaphores, want %d: %+v", len(found), len(keys), found)
	}
	for _, err := range p.store.ListPermits(background(), p.name) {
		if err != nil {
			t.Errorf("ListPermits: %v", err)
		}
		break // the iteration may stop early
	}
	for state, err := range p.store.ListPermits(background(), unique("semaphore")) {
		t.Errorf("a name without semaphores: %+v, %v", state, err)
	}
}

func permitsApart(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 1)
	for _, suffix := range [][2]string{{"", "abc"}, {"a", "bc"}, {"ab", "c"}, {"", "c"}, {"a", "abc"}, {"c", "ab"}} {
		one := p
		one.name, one.key = p.name+suffix[0], suffix[1]
		one.state(0, 0)
		one.granted(one.request(1))
		one.taken(one.request(1))
	}
}

func lockIsApart(t *testing.T, h Harness[store.Permits]) {
	p, l := newPermits(t, h, 1), newLock(t, as[store.Locks](t, h))
	l.name, l.key = p.name, p.key
	permit, hold := p.request(1), l.exclusive()
	hold.ID = permit.ID
	p.granted(permit)
	l.granted(hold)
	p.queued(p.request(1))
	l.release(hold, true)
	p.renew(permit, true)
	p.state(1, 1)
	l.granted(once(l.exclusive()))
	for state, err := range l.store.ListLocks(background(), l.name) {
		if err != nil || len(state.Holders) != 1 || state.Waiting != 0 {
			t.Errorf("one has the lock: %+v, %v", state, err)
		}
	}
	if reply := l.acquire(once(l.exclusive()), store.Taken); reply.Waiting != 0 {
		t.Errorf("waiters for the semaphore wait for the lock: %+v", reply)
	}
}

func oddPermitKeys(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	for _, key := range []string{
		"{a}", "a}{b", "{}", "\x00", "ü\xff", "a b\r\n", "*", ":", "a:b", strings.Repeat("x", 1024), strings.Repeat("\xff", 1024),
	} {
		p.key = key
		req := p.request(2)
		p.granted(req)
		next := p.waits(p.request(1))
		p.renew(req, true)
		p.release(req, true)
		next.granted()
		p.state(1, 0) // and stays held, as those of the other keys do
	}
}

// permitCalls calls every method with a context, and passes its error.
func (p permitCase) permitCalls(ctx context.Context, req store.PermitRequest, want func(method string, err error)) {
	_, err := p.store.AcquirePermits(ctx, req)
	want("AcquirePermits", err)
	_, err = p.store.AwaitPermits(ctx, req)
	want("AwaitPermits", err)
	_, err = p.store.RenewPermits(ctx, []store.PermitRef{permitOf(req)})
	want("RenewPermits", err)
	_, err = p.store.ReleasePermits(ctx, []store.PermitRef{permitOf(req)})
	want("ReleasePermits", err)
	_, err = p.store.InspectPermits(ctx, req.Name, req.Key)
	want("InspectPermits", err)
	err = errors.New("nothing was yielded")
	for _, err = range p.store.ListPermits(ctx, req.Name) {
		if err != nil {
			break
		}
	}
	want("ListPermits", err)
}

func cancelledPermits(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 1)
	ctx, cancel := context.WithCancel(background())
	cancel()
	p.permitCalls(ctx, p.request(1), func(method string, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", method, err)
		}
	})
	p.granted(p.request(1))
}

func closedPermits(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 2)
	held := p.request(2)
	p.granted(held)
	first, second := p.waits(p.request(1)), p.waits(p.request(2))
	closes(t, h.Store)
	for _, w := range []*permitWaiter{first, second} {
		select {
		case <-w.done:
			wantErrClosed(t, w.err)
		case <-time.After(eventually):
			t.Fatal("AwaitPermits does not end in a closed store")
		}
	}
	p.permitCalls(background(), held, func(_ string, err error) { wantErrClosed(t, err) })
}
