package semaphore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestBarging(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 4)
		barging := must(s.With(semaphore.WithBarging()))
		first, second := mustAcquire(t, s, 1), mustAcquire(t, s, 2)
		calls := []*pending{start(t.Context(), s, 3), start(t.Context(), s, 1), start(t.Context(), barging, 1)}
		wantGot(t, calls, 2) // at once
		calls = append(calls, start(t.Context(), barging, 2), start(t.Context(), barging, 1))
		wantGot(t, calls, 2)
		mustRelease(t, first)
		wantGot(t, calls, 2, 4) // from behind others
		mustRelease(t, calls[4].permit, second)
		wantGot(t, calls, 0, 2, 4) // the first waiter fits
		mustRelease(t, calls[0].permit)
		wantGot(t, calls, 0, 1, 2, 3, 4)
		for _, i := range []int{1, 2, 3} {
			mustRelease(t, calls[i].permit)
		}
		wantState(t, s, 0, 0)
	})
}

func TestBusyError(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 3)
		permit := mustAcquire(t, s, 2)
		p, err := s.TryAcquireN(t.Context(), "k", 2)
		var full *semaphore.BusyError
		if p != nil || !errors.Is(err, semaphore.ErrNotAcquired) || errors.Is(err, semaphore.ErrQueueFull) || !errors.As(err, &full) {
			t.Fatalf("TryAcquireN: %v, %v", p, err)
		}
		if full.InUse != 2 || full.Capacity != 3 || full.Waiting != 0 || full.Remaining <= ttl/2 || full.Remaining > ttl {
			t.Errorf("%+v", full)
		}
		if want := "semaphore: not acquired: 2 of 3 in use, 0 waiting"; err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
		mustRelease(t, permit, mustAcquire(t, s, 1))
		wantState(t, s, 0, 0)
	})
}

func TestDefaultMaxWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for range 1024 {
			waiting.Go(func() { _, _ = s.Acquire(ctx, "k") })
		}
		wantState(t, s, 1, 1024)
		if _, err := s.Acquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrQueueFull) {
			t.Errorf("Acquire: %v", err)
		}
		cancel()
		waiting.Wait()
		mustRelease(t, permit)
	})
}

func TestMaxWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1, semaphore.WithMaxWaiting(2))
		permit := mustAcquire(t, s, 1)
		ctx, cancel := context.WithCancel(t.Context())
		calls := []*pending{start(ctx, s, 1), start(t.Context(), s, 1)}
		var full *semaphore.BusyError
		_, err := s.Acquire(t.Context(), "k")
		if !errors.Is(err, semaphore.ErrQueueFull) || !errors.Is(err, semaphore.ErrNotAcquired) || !errors.As(err, &full) || full.Waiting != 2 {
			t.Fatalf("Acquire: %v", err)
		}
		if want := "semaphore: not acquired: 1 of 1 in use, 2 waiting: the queue is full"; err.Error() != want {
			t.Errorf("%q, want %q", err, want)
		}
		if _, err := s.TryAcquire(t.Context(), "k"); errors.Is(err, semaphore.ErrQueueFull) || !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("TryAcquire, which would not have waited: %v", err)
		}
		unbounded := must(s.With(semaphore.WithMaxWaiting(0)))
		calls = append(calls, start(t.Context(), unbounded, 1))
		wantState(t, s, 1, 3)
		cancel()
		if !calls[0].returned() {
			t.Fatal("still waits")
		}
		mustRelease(t, permit)
		for _, p := range calls[1:] {
			if !p.got() {
				t.Fatal(p.err)
			}
			mustRelease(t, p.permit)
		}
		wantState(t, s, 0, 0)
	})
}

// There is no re-entry: a call with a permit's context acquires another permit.
func TestNoReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2)
		outer := mustAcquire(t, s, 1)
		inner := must(s.Acquire(outer.Context(), "k"))
		if p, ok := semaphore.FromContext(inner.Context()); !ok || p != inner || p == outer {
			t.Error("the innermost permit is another")
		}
		if p, ok := semaphore.FromContext(outer.Context()); !ok || p != outer {
			t.Error("the outer permit is not found")
		}
		if p, ok := semaphore.FromContext(t.Context()); ok {
			t.Errorf("found %v", p)
		}
		if inner.Fence() == outer.Fence() {
			t.Error("two permits with the same fence")
		}
		ctx, cancel := context.WithTimeout(inner.Context(), time.Second)
		defer cancel()
		if _, err := s.Acquire(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a third of two: %v", err)
		}
		mustRelease(t, outer)
		wantEnded(t, inner, semaphore.ErrReleased) // derived from the outer one
		mustRelease(t, inner)
		wantState(t, s, 0, 0)
	})
}

// An unexpected reply grants nothing, and the request is released.
func TestUnexpectedReply(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, oddStore{w}, 1)
		if p, err := s.Acquire(t.Context(), "k"); p != nil || !errors.Is(err, errDown) {
			t.Errorf("Acquire: %v, %v", p, err)
		}
		wantState(t, s, 0, 0)
		if w.Calls(storetest.ReleasePermits) != 1 {
			t.Error("the request was not released")
		}
	})
}

type oddStore struct{ *wiretap }

func (s oddStore) AcquirePermits(ctx context.Context, req store.PermitRequest) (store.PermitReply, error) {
	reply, err := s.wiretap.AcquirePermits(ctx, req)
	reply.Outcome = store.Withdrawn
	return reply, err
}
