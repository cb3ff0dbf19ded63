package storetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Locks is the contract of store.Locks. Two of its tests wait until the store has dropped a dead
// waiter, and advance the clock by up to eight seconds.
func Locks[S store.Locks](t *testing.T, run Runner[S]) {
	runAll(t, run, []testCase[store.Locks]{
		{"a free lock is granted", grantsFree},
		{"a held lock is busy", heldIsTaken},
		{"acquire recognises its own repeat", acquireTwice},
		{"release recognises its own repeat", releaseTwice},
		{"an acquire after its own release is refused", acquireAfterRelease},
		{"a release by another ID changes nothing", releaseByStranger},
		{"verify reports whether an ID holds the lock", verifies},
		{"inspect returns the holders of the lock", inspects},
		{"list yields held and awaited locks", lists},
		{"names and keys are separate", locksApart},
		{"keys may have any bytes", oddLockKeys},
		{"one of many concurrent acquires is granted", concurrentAcquires},
		{"a cancelled context is its error", cancelledLock},
		{"a store after shutdown refuses new requests", shutDownLock},
		{"a closed store is unavailable", closedLock},
	})
	runAll(t, run, leaseCases)
	runAll(t, run, queueCases)
}

func grantsFree(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w := l.exclusive()
	l.granted(w)
	l.verify(w, true)
	l.release(w, true)
	l.verify(w, false)
	l.granted(once(l.exclusive()))
}

func heldIsTaken(t *testing.T, h Harness[store.Locks]) {
	for _, shared := range []bool{false, true} {
		l := newLock(t, h)
		w := l.exclusive()
		w.Shared, w.Holder = shared, "me\x00\xff"
		l.granted(w)
		for want, other := range []store.LockRequest{once(l.exclusive()), l.exclusive(), l.exclusive(), once(l.shared())} {
			reply := l.acquireAny(other)
			outcome, waiting := store.Taken, 2
			if want < 3 {
				waiting = max(want-1, 0)
			}
			if other.Queue {
				outcome = store.Queued
			}
			if reply.Outcome != outcome || reply.Holder != w.Holder || reply.Waiting != waiting ||
				reply.Remaining <= longLease-eventually || reply.Remaining > longLease {
				t.Errorf("request %d: %+v, want outcome %d, holder %q, %d waiting", want, reply, outcome, w.Holder, waiting)
			}
		}
	}
}

func acquireTwice(t *testing.T, h Harness[store.Locks]) {
	for _, shared := range []bool{false, true} {
		l := newLock(t, h)
		w, other := l.exclusive(), l.exclusive()
		w.Shared, w.Fences = shared, 8
		grant := l.granted(w)
		for range 2 {
			l.same(w, grant)
			if reply := l.queued(other); reply.Waiting != 0 {
				t.Errorf("%d wait before the only one in the queue", reply.Waiting)
			}
		}
		if state := l.inspect(); len(state.Holders) != 1 || state.Waiting != 1 {
			t.Errorf("one holds the lock and one waits: %+v", state)
		}
	}
}

func releaseTwice(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	first, second := l.exclusive(), l.exclusive()
	l.granted(first)
	l.release(first, true)
	l.release(first, true)
	l.granted(second)
	l.release(first, true)
	l.verify(second, true)
	stranger := l.exclusive()
	l.release(stranger, false)
	l.release(stranger, false)
}

func acquireAfterRelease(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	early, held, waited := l.exclusive(), l.exclusive(), l.exclusive()
	l.release(early, false)
	l.acquire(early, store.Withdrawn)
	l.granted(held)
	l.queued(waited)
	l.release(waited, false)
	l.acquire(waited, store.Withdrawn)
	l.release(held, true)
	for _, req := range []store.LockRequest{early, held, waited} {
		l.acquire(req, store.Withdrawn)
		l.await(req).fails(store.ErrWithdrawn)
	}
	if state := l.inspect(); len(state.Holders) != 0 || state.Waiting != 0 {
		t.Errorf("the lock is not free: %+v", state)
	}
}

func releaseByStranger(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w, r := l.exclusive(), l.shared()
	l.granted(w)
	l.release(l.exclusive(), false)
	l.release(r, false)
	l.verify(w, true)
	l.taken(l.exclusive())
}

func verifies(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	w, waits := l.exclusive(), l.exclusive()
	l.verify(w, false)
	l.granted(w)
	l.queued(waits)
	l.verify(w, true)
	l.verify(w, true)
	l.verify(waits, false)
	l.verify(l.exclusive(), false)
	l.release(w, true)
	l.verify(w, false)
}

func inspects(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	if state := l.inspect(); len(state.Holders) != 0 || state.Waiting != 0 {
		t.Errorf("a free lock: %+v", state)
	}
	w := l.exclusive()
	w.Holder, w.Fences = strings.Repeat("h\x00\xff ", store.MaxHolder/4), 8
	grant := l.granted(w)
	l.queued(l.exclusive())
	l.queued(l.shared())
	state := l.inspect()
	if len(state.Holders) != 1 || state.Waiting != 2 {
		t.Fatalf("one holds the lock and two wait: %+v", state)
	}
	got := state.Holders[0]
	if got.Fence != grant.Fence || got.LastFence != grant.LastFence || got.Shared || got.Meta != w.Holder ||
		got.Remaining <= longLease-eventually || got.Remaining > longLease {
		t.Errorf("holder is %+v, granted %+v", got, grant)
	}
}

func lists(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	other := newLock(t, h)
	other.granted(other.exclusive())
	keys := []string{"a", "b", "\x00{}\xff", strings.Repeat("k", 1024)}
	for _, key := range keys {
		l.key = key
		l.granted(l.exclusive())
	}
	l.queued(l.exclusive())
	l.key = "free"
	released := l.exclusive()
	l.granted(released)
	l.release(released, true)

	found := map[string]store.LockState{}
	for state, err := range l.store.ListLocks(background(), l.name) {
		if err != nil {
			t.Fatalf("ListLocks: %v", err)
		}
		found[state.Key] = state
	}
	for i, key := range keys {
		state := found[key]
		if waiting := i / (len(keys) - 1); len(state.Holders) != 1 || state.Waiting != waiting {
			t.Errorf("key %q: %+v, want one holder and %d waiting", key, state, waiting)
		}
	}
	if len(found) != len(keys) {
		t.Errorf("%d locks, want %d: %+v", len(found), len(keys), found)
	}
	for _, err := range l.store.ListLocks(background(), l.name) {
		if err != nil {
			t.Errorf("ListLocks: %v", err)
		}
		break // the iteration may stop early
	}
	for state, err := range l.store.ListLocks(background(), unique("lock")) {
		t.Errorf("a name without locks: %+v, %v", state, err)
	}
}

func locksApart(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	for _, suffix := range [][2]string{{"", "ab"}, {"a", "b"}, {"", "b"}, {"a", "ab"}, {"b", "a"}} {
		one := l
		one.name, one.key = l.name+suffix[0], suffix[1]
		one.granted(one.exclusive())
	}
}

func oddLockKeys(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	for _, key := range []string{
		"{a}", "a}{b", "{}", "\x00", "ü\xff", "a b\r\n", "*", ":", "a:b", strings.Repeat("x", 1024), strings.Repeat("\xff", 1024),
	} {
		l.key = key
		w := l.exclusive()
		l.granted(w)
		next := l.waits(l.exclusive())
		l.renew(w, true)
		l.release(w, true)
		grant := next.granted()
		l.force(grant.Fence, true)
		l.granted(l.exclusive()) // stays held, as those of the other keys
	}
}

func concurrentAcquires(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	var (
		wg             sync.WaitGroup
		granted, taken atomic.Int64
	)
	for range 32 {
		wg.Go(func() {
			reply, err := l.store.AcquireLock(background(), once(l.exclusive()))
			switch {
			case err != nil:
				t.Errorf("AcquireLock: %v", err)
			case reply.Outcome == store.Granted:
				granted.Add(1)
			case reply.Outcome == store.Taken:
				taken.Add(1)
			}
		})
	}
	wg.Wait()
	if granted.Load() != 1 || taken.Load() != 31 {
		t.Errorf("%d granted and %d taken, of 32", granted.Load(), taken.Load())
	}
}

// lockCalls calls every method with a context, and passes its error.
func (l lockCase) lockCalls(ctx context.Context, req store.LockRequest, want func(method string, err error)) {
	_, err := l.store.AcquireLock(ctx, req)
	want("AcquireLock", err)
	_, err = l.store.AwaitLock(ctx, req)
	want("AwaitLock", err)
	_, err = l.store.RenewLocks(ctx, []store.LockRef{holdOf(req)})
	want("RenewLocks", err)
	_, err = l.store.ReleaseLock(ctx, holdOf(req))
	want("ReleaseLock", err)
	_, err = l.store.DowngradeLock(ctx, holdOf(req))
	want("DowngradeLock", err)
	_, err = l.store.VerifyLock(ctx, holdOf(req))
	want("VerifyLock", err)
	_, err = l.store.InspectLock(ctx, req.Name, req.Key)
	want("InspectLock", err)
	_, err = l.store.ForceUnlock(ctx, req.Name, req.Key, 1)
	want("ForceUnlock", err)
	err = errors.New("nothing was yielded")
	for _, err = range l.store.ListLocks(ctx, req.Name) {
		if err != nil {
			break
		}
	}
	want("ListLocks", err)
}

func cancelledLock(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	ctx, cancel := context.WithCancel(background())
	cancel()
	req := l.exclusive()
	l.lockCalls(ctx, req, func(method string, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", method, err)
		}
	})
	l.granted(l.exclusive())
}

func closedLock(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	held := l.exclusive()
	l.granted(held)
	first, second := l.waits(l.exclusive()), l.waits(l.shared())
	closes(t, h.Store)
	for _, w := range []*waiter{first, second} {
		select {
		case <-w.done:
			wantErrClosed(t, w.err)
		case <-time.After(eventually):
			t.Fatal("AwaitLock does not end in a closed store")
		}
	}
	l.lockCalls(background(), held, func(_ string, err error) { wantErrClosed(t, err) })
}
