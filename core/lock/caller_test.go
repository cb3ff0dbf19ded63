package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// A caller whose context ends gets no lock, and a late grant is released.
func TestContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		gone, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the reason")
		cancel(why)
		if _, err := l.Lock(gone, "k"); !errors.Is(err, why) || !errors.Is(err, context.Canceled) || w.Calls(storetest.AcquireLease) != 0 {
			t.Errorf("an ended context: %v, %d requests", err, w.Calls(storetest.AcquireLease))
		}

		// While the request is in flight.
		ctx, cancel2 := context.WithCancel(t.Context())
		w.Hook(nil, storetest.On(storetest.AcquireLease, func() error {
			cancel2()
			return context.Canceled
		}))
		if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled in flight: %v", err)
		}
		w.Hook(nil, nil)
		synctest.Wait()
		wantFree(t, w, "k")

		// While it waits, in the process and in the store.
		for name, waiter := range map[string]*lock.Locker{"in the process": l, "in the store": newLocker(t, w)} {
			lease := mustLock(t, l, "k")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := waiter.Lock(ctx, "k")
			cancel()
			var held *lock.HeldError
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lock.ErrNotAcquired) || !errors.As(err, &held) || held.Holder == "" {
				t.Errorf("%s: %v", name, err)
			}
			synctest.Wait()
			mustUnlock(t, lease)
			synctest.Wait()
			wantFree(t, w, "k")
		}
	})
}

// The end of the caller's context ends the lease's context, and does not release the lock.
func TestParentEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		ctx, cancel := context.WithCancel(t.Context())
		lease := must(l.Lock(ctx, "k"))
		cancel()
		wantEnded(t, lease, context.Canceled)
		time.Sleep(3 * ttl)
		if _, err := newLocker(t, w).TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("another has it: %v", err)
		}
		if err := lease.Unlock(ctx); err != nil { // the ended context does not matter
			t.Errorf("Unlock: %v", err)
		}
		wantFree(t, w, "k")
	})
}

// An unconfirmed acquire is released.
func TestUnconfirmedAcquireIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), func(op storetest.Op) error {
			if op == storetest.AcquireLease {
				return store.ErrUnconfirmed
			}
			return nil
		})
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Lock: %v", err)
		}
		synctest.Wait()
		if n := w.Calls(storetest.ReleaseLeases); n == 0 {
			t.Error("no release was sent")
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		wantFree(t, w, "k")
	})
}

func TestReleaseIsRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease := mustLock(t, l, "k")
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), nil)
		if err := lease.Unlock(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Unlock: %v", err)
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		wantFree(t, w, "k")
	})
}

// A reply after the end of the lease grants nothing.
func TestReplyAfterTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithTTL(time.Second), lock.WithoutRenewal())
		w.Hook(nil, storetest.On(storetest.AcquireLease, func() error {
			time.Sleep(time.Second)
			return nil
		}))
		if lease, err := l.Lock(t.Context(), "k"); lease != nil || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Lock: %v, %v", lease, err)
		}
		synctest.Wait()
		wantFree(t, w, "k")
	})
}
