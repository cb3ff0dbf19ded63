package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// Semaphores is the contract of semaphore.Store. One of its tests waits until the store has given up on
// somebody, and asks the harness for up to four seconds.
func Semaphores(t *testing.T, run Runner) {
	runAll(t, run, []testCase{
		{"permits up to the capacity", permitsUpToCapacity},
		{"acquire recognises its own repeat", acquirePermitTwice},
		{"release recognises its own repeat", releasePermitTwice},
		{"an acquire after its own release is refused", acquirePermitAfterRelease},
		{"release by another changes nothing", releaseByStrangers},
		{"several are released at once", releasesSeveral},
		{"a permit expires", permitExpires},
		{"an expired permit is not revived", permitNotRevived},
		{"renewal keeps a permit and its weight", renewalKeepsPermit},
		{"every permit has a fence of its own", permitFences},
		{"inspect says what is in use", inspectsPermits},
		{"inspect lists no more than some", inspectIsBounded},
		{"list yields what is in use or waited for", listsPermits},
		{"names and keys are apart", semaphoresApart},
		{"keys of any bytes", oddSemaphoreKeys},
		{"each request has its own capacity", ownCapacities},
		{"a storm never exceeds the capacity", permitStorm},
		{"a cancelled context is its error", cancelledSemaphore},
		{"a closed store is unavailable", closedSemaphore},
	})
	runAll(t, run, permitQueueCases)
}

func permitsUpToCapacity(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	heavy, light := s.asks(3, 5), s.asks(1, 5)
	s.granted(heavy)
	s.granted(light)
	reply := s.taken(s.asks(2, 5))
	if reply.InUse != 4 || reply.Waiting != 0 || reply.QueueFull || reply.Remaining <= longLease-eventually || reply.Remaining > longLease {
		t.Errorf("taken: %+v", reply)
	}
	last := s.asks(1, 5)
	s.granted(last)
	s.stands(5, 0)
	s.taken(s.asks(1, 5))
	s.release(true, heavy)
	s.stands(2, 0)
	s.granted(s.asks(3, 5))
}

func acquirePermitTwice(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	req, other := s.asks(2, 3), s.asks(2, 3)
	grant := s.granted(req)
	for range 2 {
		if again := s.granted(req); again.Fence != grant.Fence {
			t.Errorf("granted %+v, then %+v", grant, again)
		}
		if reply := s.queued(other); reply.Waiting != 0 || reply.InUse != 2 {
			t.Errorf("queued: %+v", reply)
		}
	}
	s.stands(2, 1)
}

func releasePermitTwice(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	req, other := s.asks(2, 2), s.asks(1, 2)
	s.granted(req)
	for range 2 {
		s.release(true, req)
	}
	s.granted(other)
	s.release(true, req)
	s.stands(1, 0)
	waiter := s.asks(2, 2)
	s.queued(waiter)
	for range 2 {
		s.release(false, waiter)
	}
	s.stands(1, 0)
}

func acquirePermitAfterRelease(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	held, never := s.asks(1, 1), s.asks(1, 1)
	s.granted(held)
	s.release(true, held)
	s.release(false, never)
	for _, req := range []semaphore.AcquireRequest{held, never} {
		s.acquire(req, semaphore.Withdrawn)
		s.await(req).fails(semaphore.ErrWithdrawn)
	}
	s.stands(0, 0)
	s.granted(s.asks(1, 1))
}

func releaseByStrangers(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	req := s.asks(1, 1)
	s.granted(req)
	for _, change := range []func(*semaphore.AcquireRequest){
		func(r *semaphore.AcquireRequest) { r.ID = newOwner() },
		func(r *semaphore.AcquireRequest) { r.Key += "x" },
		func(r *semaphore.AcquireRequest) { r.Name += "x" },
	} {
		stranger := req
		change(&stranger)
		s.renew(false, stranger)
		s.release(false, stranger)
	}
	s.stands(1, 0)
	s.renew(true, req)
}

func releasesSeveral(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	var reqs []semaphore.AcquireRequest
	for range 150 {
		reqs = append(reqs, s.asks(1, 150))
		s.granted(reqs[len(reqs)-1])
	}
	waiter, unknown := s.asks(1, 150), s.asks(1, 150)
	s.queued(waiter)
	held, err := s.store.ReleasePermits(background(), permitsOf(reqs[0], waiter, unknown, reqs[1]))
	if err != nil || fmt.Sprint(held) != "[true false false true]" {
		t.Fatalf("ReleasePermits: %v, %v", held, err)
	}
	s.stands(148, 0)
	s.renew(true, reqs[2:]...)
	s.release(true, reqs[2:]...)
	s.stands(0, 0)
	if held, err := s.store.ReleasePermits(background(), nil); err != nil || len(held) != 0 {
		t.Errorf("of none: %v, %v", held, err)
	}
}

func permitExpires(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	short, long := s.asks(3, 4), s.asks(1, 4)
	short.TTL = shortLease
	s.granted(short)
	s.granted(long)
	h.Advance(pastLease)
	s.stands(1, 0)
	s.granted(s.asks(3, 4))
	s.release(false, short)
	s.stands(4, 0)
}

func permitNotRevived(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	req := s.asks(1, 2)
	req.TTL = shortLease
	s.granted(req)
	h.Advance(pastLease)
	for range 2 {
		s.renew(false, req)
	}
	s.stands(0, 0)
}

func renewalKeepsPermit(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	req := s.asks(2, 3)
	req.TTL = 5 * shortLease
	grant := s.granted(req)
	for range 3 {
		h.Advance(3 * shortLease)
		s.renew(true, req)
		s.renew(true, req)
	}
	state := s.inspect()
	if state.InUse != 2 || len(state.Holders) != 1 || state.Holders[0].Fence != grant.Fence || state.Holders[0].Weight != 2 {
		t.Errorf("after renewals: %+v", state)
	}
	req.TTL = longLease
	s.renew(true, req)
	h.Advance(2 * shortLease)
	if state := s.inspect(); len(state.Holders) != 1 || state.Holders[0].Remaining < longLease-eventually {
		t.Errorf("renewed for %v: %+v", longLease, state)
	}
	s.release(true, req)
	s.stands(0, 0)
}

func permitFences(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	seen := make(map[int64]bool)
	for n := range 20 {
		req := s.asks(1, 20)
		seen[s.granted(req).Fence] = true
		if n%2 == 0 {
			s.release(true, req)
		}
		h.Advance(time.Millisecond) // a store may go by its clock
	}
	if len(seen) != 20 {
		t.Errorf("20 permits have %d fences", len(seen))
	}
}

func inspectsPermits(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	s.stands(0, 0)
	a, b := s.asks(1, 3), s.asks(2, 3)
	a.Holder, b.Holder = "a\x00\xff \n", ""
	fences := map[int64]semaphore.Holder{}
	fences[s.granted(a).Fence] = semaphore.Holder{Weight: 1, Meta: a.Holder}
	fences[s.granted(b).Fence] = semaphore.Holder{Weight: 2}
	s.queued(s.asks(3, 3))
	s.stands(3, 1)
	state := s.inspect()
	if len(state.Holders) != 2 {
		t.Fatalf("%+v, want two holders", state)
	}
	for _, holder := range state.Holders {
		want, ok := fences[holder.Fence]
		if !ok || holder.Weight != want.Weight || holder.Meta != want.Meta || holder.Remaining <= longLease-eventually || holder.Remaining > longLease {
			t.Errorf("holder %+v, want %+v", holder, want)
		}
	}
}

func inspectIsBounded(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	const n = semaphore.MaxHolders + 20
	for range n {
		s.granted(s.asks(1, n))
	}
	if state := s.inspect(); state.InUse != n || len(state.Holders) != semaphore.MaxHolders {
		t.Errorf("%d in use, %d holders", state.InUse, len(state.Holders))
	}
}

func listsPermits(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	want := map[string]string{}
	for i := range 5 {
		s.key = fmt.Sprint("k", i)
		req := s.asks(i+1, 5)
		s.granted(req)
		want[s.key] = fmt.Sprint(i+1, 0)
		switch i {
		case 0:
			s.release(true, req)
			delete(want, s.key)
		case 1:
			s.queued(s.asks(5, 5))
			want[s.key] = fmt.Sprint(i+1, 1)
		}
	}
	other := s
	other.name += "x"
	other.granted(other.asks(1, 1))
	got := map[string]string{}
	for state, err := range s.store.ListPermits(background(), s.name) {
		if err != nil {
			t.Fatal(err)
		}
		got[state.Key] = fmt.Sprint(state.InUse, state.Waiting)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("listed %v, want %v", got, want)
	}
	for _, err := range s.store.ListPermits(background(), s.name) {
		if err != nil {
			t.Error(err)
		}
		break // stops the listing
	}
}

func semaphoresApart(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	for _, at := range [][2]string{{"", "bc"}, {"b", "c"}, {"", "b"}, {":", "b"}} {
		other := s
		other.name, other.key = s.name+at[0], at[1]
		req := other.asks(1, 1)
		other.granted(req)
		other.taken(other.asks(1, 1))
		other.stands(1, 0)
	}
	l := newLock(t, h)
	l.name, l.key = s.name, "b"
	l.granted(l.exclusive()) // a lock of that name is something else
}

func oddSemaphoreKeys(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	for _, key := range []string{"\x00", "{}", "}x:{", "ü \n", "*", string(make([]byte, 1024))} {
		s.key = key
		req := s.asks(1, 1)
		s.granted(req)
		s.taken(s.asks(1, 1))
		s.stands(1, 0)
		s.release(true, req)
		s.stands(0, 0)
	}
}

func ownCapacities(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	var old []semaphore.AcquireRequest
	for range 4 {
		old = append(old, s.asks(1, 4))
		s.granted(old[len(old)-1])
	}
	s.taken(s.asks(1, 2)) // of a process that has been told to have fewer: it drains
	s.granted(s.asks(1, 5))
	s.release(true, old[:3]...)
	s.taken(s.asks(1, 2))
	s.release(true, old[3])
	s.granted(s.asks(1, 2))
	s.stands(2, 0)
}

func permitStorm(t *testing.T, h Harness) {
	for _, capacity := range []int{1, 5, 100} {
		s := newSemaphore(t, h)
		var (
			wg          sync.WaitGroup
			inUse, most atomic.Int64
		)
		for g := range 24 {
			wg.Go(func() {
				for n := range 4 {
					req := s.asks(min(1+(g+n)%3, capacity), capacity)
					reply, err := s.store.AcquirePermits(background(), req)
					if err == nil && reply.Outcome == semaphore.Queued {
						_, err = s.store.AwaitPermits(background(), req)
					} else if err == nil && reply.Outcome != semaphore.Granted {
						err = fmt.Errorf("outcome %d", reply.Outcome)
					}
					if err != nil {
						t.Error(err)
						return
					}
					now := inUse.Add(int64(req.Weight))
					if now > int64(capacity) {
						t.Errorf("%d of %d in use", now, capacity)
					}
					for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
					}
					inUse.Add(-int64(req.Weight))
					held, err := s.store.ReleasePermits(background(), permitsOf(req))
					if err != nil || !held[0] {
						t.Errorf("ReleasePermits: %v, %v", held, err)
					}
				}
			})
		}
		wg.Wait()
		s.stands(0, 0)
	}
}

func cancelledSemaphore(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	ctx, cancel := context.WithCancel(background())
	cancel()
	req := s.asks(1, 1)
	_, acquireErr := s.store.AcquirePermits(ctx, req)
	_, awaitErr := s.store.AwaitPermits(ctx, req)
	_, renewErr := s.store.RenewPermits(ctx, permitsOf(req))
	_, releaseErr := s.store.ReleasePermits(ctx, permitsOf(req))
	_, inspectErr := s.store.InspectPermits(ctx, s.name, s.key)
	var listErr error
	for _, err := range s.store.ListPermits(ctx, s.name) {
		listErr = err
	}
	for name, err := range map[string]error{
		"AcquirePermits": acquireErr, "AwaitPermits": awaitErr, "RenewPermits": renewErr, "ReleasePermits": releaseErr,
		"InspectPermits": inspectErr, "ListPermits": listErr,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the context's error", name, err)
		}
	}
}

func closedSemaphore(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	s.granted(s.asks(1, 1))
	w := s.waits(s.asks(1, 1))
	if err := h.Store.Close(); err != nil {
		t.Fatal(err)
	}
	w.fails(core.ErrClosed)
	req := s.asks(1, 1)
	_, acquireErr := s.store.AcquirePermits(background(), req)
	_, awaitErr := s.store.AwaitPermits(background(), req)
	_, renewErr := s.store.RenewPermits(background(), permitsOf(req))
	_, releaseErr := s.store.ReleasePermits(background(), permitsOf(req))
	_, inspectErr := s.store.InspectPermits(background(), s.name, s.key)
	for name, err := range map[string]error{
		"AcquirePermits": acquireErr, "AwaitPermits": awaitErr, "RenewPermits": renewErr, "ReleasePermits": releaseErr,
		"InspectPermits": inspectErr,
	} {
		if !errors.Is(err, core.ErrClosed) {
			t.Errorf("%s: %v, want core.ErrClosed", name, err)
		}
	}
}
