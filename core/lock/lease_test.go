package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestLockIsRenewedUntilItIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease := mustLock(t, l, "k")
		if lease.Key() != "k" || lease.Shared() || lease.Fence().Number <= 0 || lease.Fence().Shared {
			t.Errorf("lease of %q, shared %v, fence %+v", lease.Key(), lease.Shared(), lease.Fence())
		}
		time.Sleep(10*ttl + time.Second)
		wantValid(t, lease)
		if left := time.Until(lease.ValidUntil()); left <= ttl/2 || left >= ttl {
			t.Errorf("valid for %v", left)
		}
		ok(t, lease.Verify(t.Context()))
		if n := w.Calls(storetest.RenewLeases); n < 29 || n > 31 {
			t.Errorf("renewed %d times in 10 leases, want 30", n)
		}
		mustUnlock(t, lease)
		wantEnded(t, lease, lock.ErrReleased)
		wantFree(t, w, "k")
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrReleased) || !strings.Contains(err.Error(), "by Unlock") {
			t.Errorf("Unlock again: %v", err)
		}
		if err := lease.Verify(t.Context()); !errors.Is(err, lock.ErrReleased) {
			t.Errorf("Verify of a released lease: %v", err)
		}
		renewals := w.Calls(storetest.RenewLeases)
		time.Sleep(10 * ttl)
		if n := w.Calls(storetest.RenewLeases); n != renewals {
			t.Errorf("renewed %d times after the release", n-renewals)
		}
	})
}

func TestTryLock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l, other := newLocker(t, w, lock.WithHolder("me")), newLocker(t, w)
		lease := mustLock(t, l, "k")
		for name, try := range map[string]func(context.Context, string) (*lock.Lease, error){
			"the same process": l.TryLock, "another": other.TryLock, "another, shared": other.TryRLock,
		} {
			got, err := try(t.Context(), "k")
			var held *lock.HeldError
			if got != nil || !errors.Is(err, lock.ErrNotAcquired) || !errors.As(err, &held) {
				t.Fatalf("%s: %v, %v", name, got, err)
			}
			if held.Holder != "me" || held.Remaining <= ttl/2 || held.Remaining > ttl || held.Waiting != 0 {
				t.Errorf("%s: %+v", name, held)
			}
		}
		if _, err := l.TryLock(t.Context(), "another key"); err != nil {
			t.Errorf("another key: %v", err)
		}
		mustUnlock(t, lease)
		lease = must(other.TryLock(t.Context(), "k"))
		mustUnlock(t, lease)
	})
}

func TestWithoutRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lease := mustLock(t, newLocker(t, w, lock.WithoutRenewal()), "k")
		time.Sleep(time.Until(lease.ValidUntil()) - 1)
		wantValid(t, lease)
		time.Sleep(time.Nanosecond)
		wantEnded(t, lease, lock.ErrExpired)
		time.Sleep(ttl)
		wantFree(t, w, "k")
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		if n := w.Calls(storetest.RenewLeases); n != 0 {
			t.Errorf("renewed %d times", n)
		}
	})
}

func TestWithMaxHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lease := mustLock(t, newLocker(t, w, lock.WithMaxHold(4*ttl)), "k")
		time.Sleep(4*ttl - 1)
		wantValid(t, lease)
		time.Sleep(time.Nanosecond)
		wantEnded(t, lease, lock.ErrExpired)
		time.Sleep(ttl + time.Second) // it is not renewed any more
		wantFree(t, w, "k")
	})
}

// If the store does not reply, a lease ends before the store may grant the lock to others.
func TestSilentStore(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lease := mustLock(t, newLocker(t, w), "k")
		other := start(func() (*lock.Lease, error) { return newLocker(t, w).Lock(t.Context(), "k") })
		var granted time.Time
		go func() {
			<-other.done
			granted = time.Now()
		}()
		w.Hook(storetest.Failing(errDown, storetest.RenewLeases, storetest.ReleaseLeases), nil)
		<-lease.Context().Done()
		ended := time.Now()
		wantEnded(t, lease, lock.ErrExpired)
		if other.returned() {
			t.Fatal("the lock was granted to another before the lease's context ended")
		}
		<-other.done
		synctest.Wait()
		if !granted.After(ended) {
			t.Errorf("granted %v after the end of the lease", granted.Sub(ended))
		}
		w.Hook(nil, nil)
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		wantValid(t, other.lease)
		mustUnlock(t, other.lease)
	})
}

// Renewals that fail are retried in time.
func TestRenewalIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lease := mustLock(t, newLocker(t, w), "k")
		n := 0
		w.Hook(func(op storetest.Op) error {
			if op != storetest.RenewLeases {
				return nil
			}
			if n++; n%4 != 0 {
				return errDown
			}
			return nil
		}, nil)
		time.Sleep(20 * ttl)
		wantValid(t, lease)
		mustUnlock(t, lease)
	})
}

func TestVerifyReportsALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lease := mustLock(t, newLocker(t, w), "k")
		w.lose(t)
		wantValid(t, lease)
		if err := lease.Verify(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Verify: %v", err)
		}
		wantEnded(t, lease, lock.ErrLost)
	})
}

func TestVerifyBy(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		lease := mustLock(t, newLocker(t, w), "k")
		by := func(held bool, failure error) error {
			return lease.VerifyBy(t.Context(), func(_ context.Context, _ store.Leases, ref store.LeaseRef) (bool, error) {
				if ref.Key != "k" || ref.Fence != lease.Fence().Number {
					t.Errorf("the hold is %+v", ref)
				}
				return held, failure
			})
		}
		failure := errors.New("broken")
		if err := by(false, failure); !errors.Is(err, failure) {
			t.Errorf("a failed step: %v", err)
		}
		ok(t, by(true, nil))
		wantValid(t, lease)
		if err := by(false, nil); !errors.Is(err, lock.ErrLost) {
			t.Errorf("not held: %v", err)
		}
		wantEnded(t, lease, lock.ErrLost)
	})
}

func TestForceUnlock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l, operator := newLocker(t, w, lock.WithHolder("stuck")), newLocker(t, w)
		lease := mustLock(t, l, "k")
		state, err := operator.Inspect(t.Context(), "k")
		if err != nil || len(state.Holders) != 1 || state.Holders[0].Label != "stuck" {
			t.Fatalf("%+v, %v", state, err)
		}
		found := 0
		for state, err := range operator.List(t.Context()) {
			if err != nil || state.Key != "k" {
				t.Errorf("List: %+v, %v", state, err)
			}
			found++
		}
		if found != 1 {
			t.Errorf("List found %d locks", found)
		}
		if done, err := operator.ForceUnlock(t.Context(), "k", state.Holders[0].LastFence+1); done || err != nil {
			t.Errorf("another fence: %v, %v", done, err)
		}
		wantValid(t, lease)
		if done, err := operator.ForceUnlock(t.Context(), "k", lease.Fence().Number); !done || err != nil {
			t.Fatalf("ForceUnlock: %v, %v", done, err)
		}
		synctest.Wait()
		wantEnded(t, lease, lock.ErrLost)
		next := mustLock(t, operator, "k")
		if next.Fence().Number <= lease.Fence().Number {
			t.Errorf("fence %d after %d", next.Fence().Number, lease.Fence().Number)
		}
		if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock: %v", err)
		}
		wantValid(t, next)
		mustUnlock(t, next)
	})
}
