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

// Whose context ends does not get the lock, and whoever is granted it too late gives it back.
func TestContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		gone, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the reason")
		cancel(why)
		if _, err := l.Lock(gone, "k"); !errors.Is(err, why) || !errors.Is(err, context.Canceled) || w.Calls(storetest.AcquireLock) != 0 {
			t.Errorf("an ended context: %v, %d requests", err, w.Calls(storetest.AcquireLock))
		}

		// While the request is under way.
		ctx, cancel2 := context.WithCancel(t.Context())
		w.Hook(nil, func(op storetest.Op) error {
			if op == storetest.AcquireLock {
				cancel2()
				return context.Canceled
			}
			return nil
		})
		if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while under way: %v", err)
		}
		w.Hook(nil, nil)
		synctest.Wait()
		wantFree(t, w, "k")

		// While it waits, here and in the store.
		for name, waiter := range map[string]*lock.Locker{"in line": l, "in the store": newLocker(t, w)} {
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

// The end of the context that a lock was asked for with ends the lease's, and not the hold.
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

// An acquire of which nothing is known is given back.
func TestUnconfirmedAcquireIsGivenBack(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		w.Hook(func(op storetest.Op) error {
			if op == storetest.ReleaseLock {
				return errDown
			}
			return nil
		}, func(op storetest.Op) error {
			if op == storetest.AcquireLock {
				return store.ErrUnconfirmed
			}
			return nil
		})
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Lock: %v", err)
		}
		synctest.Wait()
		if n := w.Calls(storetest.ReleaseLock); n == 0 {
			t.Error("nobody tried to give it back")
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		wantFree(t, w, "k")
	})
}

func TestReleaseIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease := mustLock(t, l, "k")
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLock), nil)
		if err := lease.Unlock(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Unlock: %v", err)
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		wantFree(t, w, "k")
	})
}

// A reply that is later than the lease's end is no lease.
func TestReplyAfterTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithTTL(time.Second), lock.WithoutRenewal())
		w.Hook(nil, func(op storetest.Op) error {
			if op == storetest.AcquireLock {
				time.Sleep(time.Second)
			}
			return nil
		})
		if lease, err := l.Lock(t.Context(), "k"); lease != nil || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Lock: %v, %v", lease, err)
		}
		synctest.Wait()
		wantFree(t, w, "k")
	})
}
