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

// A tier leaves its reserve to smaller ones, which are granted first.
func TestReserve(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		critical := newSemaphore(t, w, 4)
		batch := must(critical.With(semaphore.WithReserve(2)))
		held := []*semaphore.Permit{mustAcquire(t, batch, 1), mustAcquire(t, batch, 1)}
		if _, err := batch.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("a third beside the reserve: %v", err)
		}
		held = append(held, mustAcquire(t, critical, 2))
		calls := []*pending{start(t.Context(), batch, 2), start(t.Context(), critical, 2)}
		wantGot(t, calls)
		mustRelease(t, held[0], held[1])
		wantGot(t, calls, 1) // before the earlier one
		mustRelease(t, held[2])
		wantGot(t, calls, 1) // half of the capacity is the reserve
		mustRelease(t, calls[1].permit)
		wantGot(t, calls, 0, 1)
		mustRelease(t, calls[0].permit)
		for _, call := range []func(context.Context, string, int) (*semaphore.Permit, error){batch.AcquireN, batch.TryAcquireN} {
			sent := w.Calls(storetest.AcquireLease)
			if _, err := call(t.Context(), "k", 3); !errors.Is(err, semaphore.ErrInvalidWeight) || w.Calls(storetest.AcquireLease) != sent {
				t.Errorf("3 of 4 with a reserve of 2: %v", err)
			}
		}
		wantState(t, critical, 0, 0)
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
		wantState(t, s, 1, 0) // they wait in the process
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
		wantState(t, s, 1, 0)
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
		if w.Calls(storetest.ReleaseLeases) != 1 {
			t.Error("the request was not released")
		}
	})
}

type oddStore struct{ *wiretap }

func (s oddStore) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	reply, err := s.wiretap.AcquireLease(ctx, req)
	reply.Outcome = store.Withdrawn
	return reply, err
}
