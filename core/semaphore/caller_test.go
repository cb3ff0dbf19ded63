package semaphore_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestEndedContextSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		base := newSemaphore(t, w, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the reason")
		cancel(why)
		if _, err := base.Acquire(ctx, "k"); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
		if n := w.Calls(storetest.AcquireLease); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
}

// A waiter whose context ends leaves the queue at once, and the next is granted its permit.
func TestContextEndsWhileWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s, other := newSemaphore(t, w, 2), newSemaphore(t, w, 2)
		permit := mustAcquire(t, s, 1)
		why := errors.New("the reason")
		ctx, cancel := context.WithCancelCause(t.Context())
		head := start(ctx, s, 2)
		next := start(t.Context(), other, 1)
		wantState(t, s, 1, 2)
		began := time.Now()
		cancel(why)
		var full *semaphore.BusyError
		if !head.returned() || !errors.Is(head.err, why) || !errors.Is(head.err, context.Canceled) ||
			!errors.Is(head.err, semaphore.ErrNotAcquired) || !errors.As(head.err, &full) || full.InUse != 1 {
			t.Errorf("the head of the queue: %v", head.err)
		}
		if !next.got() || time.Since(began) != 0 {
			t.Fatalf("the next: %v, after %v", next.err, time.Since(began))
		}
		mustRelease(t, permit, next.permit)
		wantState(t, s, 0, 0)

		permit = mustAcquire(t, s, 2)
		short, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := s.Acquire(short, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("Acquire: %v after %v", err, time.Since(began))
		}
		wantState(t, s, 2, 0)
		mustRelease(t, permit)
	})
}

// A grant after the end of its context is released.
func TestContextEndsInFlight(t *testing.T) {
	for name, after := range map[string]error{"no reply": context.Canceled, "granted": nil} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				s := newSemaphore(t, w, 1)
				ctx, cancel := context.WithCancel(t.Context())
				w.Hook(nil, storetest.On(storetest.AcquireLease, func() error {
					cancel()
					return after
				}))
				if _, err := s.Acquire(ctx, "k"); !errors.Is(err, context.Canceled) {
					t.Errorf("Acquire: %v", err)
				}
				wantState(t, s, 0, 0)
			})
		})
	}
}

func TestContextEndsAtTheGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, newSemaphore(t, w, 1), 1)
		ctx, cancel := context.WithCancel(t.Context())
		w.Hook(nil, storetest.On(storetest.AwaitLease, func() error {
			cancel()
			return nil
		}))
		call := start(ctx, s, 1)
		mustRelease(t, permit)
		if !call.returned() || !errors.Is(call.err, context.Canceled) {
			t.Errorf("the call: %v", call.err)
		}
		wantState(t, s, 0, 0)
	})
}

// The end of the caller's context ends the permit's context, and does not release it.
func TestParentEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		ctx, cancel := context.WithCancel(t.Context())
		permit := must(s.Acquire(ctx, "k"))
		cancel()
		wantEnded(t, permit, context.Canceled)
		time.Sleep(3 * ttl)
		if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("another has it: %v", err)
		}
		if err := permit.Release(ctx); err != nil { // the ended context does not matter
			t.Errorf("Release: %v", err)
		}
		wantState(t, s, 0, 0)
	})
}

// An unconfirmed acquire is released.
func TestUnconfirmedAcquireIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), storetest.Failing(store.ErrUnconfirmed, storetest.AcquireLease))
		if _, err := s.Acquire(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Acquire: %v", err)
		}
		synctest.Wait()
		if n := w.Calls(storetest.ReleaseLeases); n == 0 {
			t.Error("no release was sent")
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		wantState(t, s, 0, 0)
	})
}

// A failed request that granted nothing is not released: an outage costs no second request.
func TestFailedAcquireIsNotReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		w.Hook(storetest.Failing(errDown, storetest.AcquireLease), nil)
		if _, err := s.Acquire(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Acquire: %v", err)
		}
		w.Hook(nil, nil)
		permit := mustAcquire(t, s, 1)
		if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Fatalf("TryAcquire: %v", err)
		}
		synctest.Wait()
		if n := w.Calls(storetest.ReleaseLeases); n != 0 {
			t.Errorf("%d releases", n)
		}
		mustRelease(t, permit)
	})
}

// The store becomes unavailable while a request waits.
func TestOutageWhileWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, newSemaphore(t, w, 1), 1)
		w.Hook(nil, storetest.Failing(errDown, storetest.AwaitLease))
		call := start(t.Context(), s, 1)
		if call.returned() {
			t.Fatal(call.err)
		}
		mustRelease(t, permit) // whose push is lost
		if !call.returned() || !errors.Is(call.err, errDown) {
			t.Errorf("the call: %v", call.err)
		}
		wantState(t, s, 0, 0)
	})
}

// A reply after the end of the lease grants nothing.
func TestReplyAfterTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1, semaphore.WithTTL(time.Second), semaphore.WithoutRenewal())
		w.Hook(nil, storetest.On(storetest.AcquireLease, func() error {
			time.Sleep(time.Second)
			return nil
		}))
		if permit, err := s.Acquire(t.Context(), "k"); permit != nil || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Acquire: %v, %v", permit, err)
		}
		wantState(t, s, 0, 0)
	})
}
