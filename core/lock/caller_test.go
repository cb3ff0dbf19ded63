package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Whose context ends does not get the lock, and whoever is granted it too late gives it back.
func TestContextEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		gone, cancel := context.WithCancelCause(t.Context())
		why := errors.New("the reason")
		cancel(why)
		if _, err := l.Lock(gone, "k"); !errors.Is(err, why) || !errors.Is(err, context.Canceled) || w.count("acquire") != 0 {
			t.Errorf("an ended context: %v, %d requests", err, w.count("acquire"))
		}

		// While the request is under way.
		ctx, cancel2 := context.WithCancel(t.Context())
		w.set(nil, func(call string) error {
			if call == "acquire" {
				cancel2()
				return context.Canceled
			}
			return nil
		})
		if _, err := l.Lock(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while under way: %v", err)
		}
		w.set(nil, nil)
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
		w.set(func(call string) error {
			if call == "release" {
				return errDown
			}
			return nil
		}, func(call string) error {
			if call == "acquire" {
				return store.ErrUnconfirmed
			}
			return nil
		})
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Lock: %v", err)
		}
		synctest.Wait()
		if n := w.count("release"); n == 0 {
			t.Error("nobody tried to give it back")
		}
		w.set(nil, nil)
		time.Sleep(3 * time.Second)
		wantFree(t, w, "k")
	})
}

func TestReleaseIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease := mustLock(t, l, "k")
		w.fail(errDown, "release")
		if err := lease.Unlock(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Unlock: %v", err)
		}
		w.fail(nil)
		time.Sleep(3 * time.Second)
		wantFree(t, w, "k")
	})
}

// A reply that is later than the lease's end is no lease.
func TestReplyAfterTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithTTL(time.Second), lock.WithoutRenewal())
		w.set(nil, func(call string) error {
			if call == "acquire" {
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
