package semaphore_test

import (
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestPermitIsRenewedUntilItIsReleased(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 5)
		permit := mustAcquire(t, s, 3)
		if permit.Key() != "k" || permit.Weight() != 3 || permit.Fence().Number <= 0 || !permit.Fence().Shared {
			t.Errorf("permit of %q, weight %d, fence %+v", permit.Key(), permit.Weight(), permit.Fence())
		}
		time.Sleep(10*ttl + time.Second)
		wantValid(t, permit)
		if left := time.Until(permit.ValidUntil()); left <= ttl/2 || left >= ttl {
			t.Errorf("valid for %v", left)
		}
		if n := w.Calls(storetest.RenewLeases); n < 29 || n > 31 {
			t.Errorf("renewed %d times in 10 leases, want 30", n)
		}
		mustRelease(t, permit)
		wantEnded(t, permit, semaphore.ErrReleased)
		wantState(t, s, 0, 0)
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrReleased) {
			t.Errorf("Release again: %v", err)
		}
		renewals := w.Calls(storetest.RenewLeases)
		time.Sleep(10 * ttl)
		if n := w.Calls(storetest.RenewLeases); n != renewals {
			t.Errorf("renewed %d times after the release", n-renewals)
		}
	})
}

func TestRenewalsGoInBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 100)
		for range 100 {
			mustAcquire(t, s, 1)
		}
		time.Sleep(ttl/3 + time.Second)
		if n := w.Calls(storetest.RenewLeases); n != 1 {
			t.Errorf("renewed 100 permits in %d calls", n)
		}
	})
}

func TestWithoutRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1, semaphore.WithoutRenewal())
		permit := mustAcquire(t, s, 1)
		time.Sleep(time.Until(permit.ValidUntil()) - 1)
		wantValid(t, permit)
		time.Sleep(time.Nanosecond)
		wantEnded(t, permit, semaphore.ErrExpired)
		time.Sleep(ttl)
		wantState(t, s, 0, 0)
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		if n := w.Calls(storetest.RenewLeases); n != 0 {
			t.Errorf("renewed %d times", n)
		}
	})
}

func TestWithMaxHold(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1, semaphore.WithMaxHold(4*ttl))
		released := mustAcquire(t, s, 1)
		mustRelease(t, released)
		permit := mustAcquire(t, s, 1)
		time.Sleep(4*ttl - 1)
		wantValid(t, permit)
		time.Sleep(time.Nanosecond)
		wantEnded(t, permit, semaphore.ErrExpired)
		wantEnded(t, released, semaphore.ErrReleased)
		time.Sleep(ttl + time.Second) // it is not renewed any more
		wantState(t, s, 0, 0)
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("Release: %v", err)
		}
	})
}

// If the store does not reply, a permit ends before the store may grant it to others.
func TestSilentStore(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2)
		permit := mustAcquire(t, s, 2)
		other := start(t.Context(), newSemaphore(t, w, 2), 1)
		granted := make(chan time.Time, 1)
		go func() {
			<-other.done
			granted <- time.Now()
		}()
		w.Hook(storetest.Failing(errDown, storetest.RenewLeases, storetest.ReleaseLeases), nil)
		<-permit.Context().Done()
		ended := time.Now()
		wantEnded(t, permit, semaphore.ErrExpired)
		if other.returned() {
			t.Fatal("the permit was granted to another before the permit's context ended")
		}
		if at := <-granted; other.err != nil || !at.After(ended) {
			t.Errorf("granted %v after the end of the permit, %v", at.Sub(ended), other.err)
		}
		w.Hook(nil, nil)
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		wantValid(t, other.permit)
		mustRelease(t, other.permit)
	})
}

// Renewals that fail are retried in time.
func TestRenewalIsRepeated(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		permit := mustAcquire(t, newSemaphore(t, w, 1), 1)
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
		wantValid(t, permit)
		mustRelease(t, permit)
	})
}

func TestLostPermit(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2)
		kept := mustAcquire(t, s, 1)
		permit := mustAcquire(t, s, 1)
		w.lose(t)
		time.Sleep(ttl/3 + time.Second)
		wantEnded(t, permit, semaphore.ErrLost)
		wantValid(t, kept)
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("Release: %v", err)
		}

		permit = mustAcquire(t, s, 1)
		w.lose(t)
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) { // before a renewal reports it
			t.Errorf("Release: %v", err)
		}
		wantEnded(t, permit, semaphore.ErrReleased)
		mustRelease(t, kept)
	})
}

// A Semaphore keeps nothing of expired permits, even if they are not released.
func TestExpiredPermitsAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 3, semaphore.WithoutRenewal())
		var permits []weak.Pointer[semaphore.Permit]
		for range 3 {
			permits = append(permits, weak.Make(mustAcquire(t, s, 1)))
		}
		time.Sleep(ttl + time.Millisecond)
		synctest.Wait()
		runtime.GC()
		for i, p := range permits {
			if p.Value() != nil {
				t.Errorf("permit %d is kept", i)
			}
		}
	})
}
