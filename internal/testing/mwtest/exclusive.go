package mwtest

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func newLocker(t *rig, st store.Leases) *lock.Locker {
	t.Helper()
	l := must(lock.New(st, "carts"))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func newSemaphore(t *rig, st store.Leases, capacity int, opts ...semaphore.Option) *semaphore.Semaphore {
	t.Helper()
	s := must(semaphore.New(st, "reports", capacity, opts...))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// locked acquires the lock 1, and releases it at the end of the test, as its Locker waits for.
func locked(t *rig, l *lock.Locker) *lock.Lease {
	t.Helper()
	lease := must(l.Lock(t.Context(), "1"))
	context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) })
	return lease
}

// permitted acquires a permit, likewise.
func permitted(t *rig, s *semaphore.Semaphore) *semaphore.Permit {
	t.Helper()
	permit := must(s.Acquire(t.Context(), "1"))
	context.AfterFunc(permit.Context(), func() { _ = permit.Release(context.Background()) })
	return permit
}

var byID = Key{Kind: ByID, Name: "id"}

func retries(t *rig, a answer) {
	t.Helper()
	if n, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || n < 1 {
		t.Errorf("Retry-After is %q", a.header.Get("Retry-After"))
	}
}

var exclusiveRows = append([]row{
	{"requests of a key run one at a time", func(t *rig) {
		g := newGate(t)
		s := serve(t, g.handle, Exclusive{Locker: newLocker(t, newStore(t)), By: byID})
		first := s.sending("1")
		g.runs(t)
		retries(t, s.send("1", "").denies(policy.Locked))
		other := s.sending("2")
		g.runs(t)
		g.let()
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		awaitAnswer(t, other).is(http.StatusOK, "done")
		again := s.sending("1")
		g.runs(t)
		g.let()
		awaitAnswer(t, again).is(http.StatusOK, "done")
	}},
	{"a waiting request is served in order", func(t *rig) {
		g := newGate(t)
		l := newLocker(t, newStore(t))
		s := serve(t, g.handle, Exclusive{Locker: l, By: byID, Options: []policy.ExclusiveOption{policy.Wait(t.patience)}})
		first := s.sending("1")
		g.runs(t)
		second := s.sending("1")
		reaches(t, func() int {
			_, err := l.TryLock(t.Context(), "1")
			return heldWaiting(err)
		}, 1)
		g.idle(t)
		g.let()
		awaitAnswer(t, first).is(http.StatusOK, "done")
		g.runs(t)
		g.let()
		awaitAnswer(t, second).is(http.StatusOK, "done")
	}},
	{"a request that has waited for the maximum time is refused", func(t *rig) {
		g := newGate(t)
		s := serve(t, g.handle, Exclusive{
			Locker: newLocker(t, newStore(t)), By: byID, Options: []policy.ExclusiveOption{policy.Wait(50 * time.Millisecond)},
		})
		first := s.sending("1")
		g.runs(t)
		retries(t, s.send("1", "").denies(policy.Locked))
		g.let()
		awaitAnswer(t, first)
	}},
	{"the handler finds its lease", func(t *rig) {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			lease, ok := lock.FromContext(r.Context())
			_, _ = io.WriteString(w, strconv.FormatBool(ok && lease.Key() == "1" && lease.Fence().Number > 0))
		}, Exclusive{Locker: newLocker(t, newStore(t)), By: byID})
		s.send("1", "").is(http.StatusOK, "true")
	}},
	{"a panic releases the lock", func(t *rig) {
		s := serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			Exclusive{Locker: newLocker(t, newStore(t)), By: byID})
		for range 2 {
			if a := s.send("1", ""); a.status != http.StatusInternalServerError {
				t.Errorf("%d %q", a.status, a.body)
			}
		}
	}},
	{"a key that is too long is refused", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Exclusive{Locker: newLocker(t, newStore(t)), By: byHeader})
		s.send("1", "", "X-Key", strings.Repeat("k", 1025)).denies(policy.KeyMalformed)
		c.ran(t, 0)
	}},
	{"an unavailable store refuses requests", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, Exclusive{Locker: newLocker(t, st), By: byID})
		st.BreakNext(storetest.AcquireLease, storetest.Down, 1)
		s.send("1", "").denies(policy.ReducedCapacity)
		s.send("1", "").is(http.StatusCreated, "run 1")
	}},
	{"an unavailable store lets requests run unprotected if configured", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, Exclusive{
			Locker: newLocker(t, st), By: byID, Options: []policy.ExclusiveOption{policy.RunUnprotected()},
		})
		s.send("1", "").is(http.StatusCreated, "run 1").has("Lock-Status", "")
		st.Break(storetest.AcquireLease, storetest.Down)
		s.send("1", "").is(http.StatusCreated, "run 2").has("Lock-Status", "bypassed")
	}},
}, keyRows(func(t *rig, by Key, hooks Hooks) Middleware {
	return Exclusive{Locker: newLocker(t, newStore(t)), By: by, Hooks: hooks}
})...)
