package lock_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// slowly makes calls of an operation take d, and then return err if it is not nil.
func slowly(w *wiretap, slow storetest.Op, d time.Duration, err error) {
	w.Hook(storetest.On(slow, func() error {
		time.Sleep(d)
		return err
	}), nil)
}

// A local queue whose requests have all failed is not a holder: while the store is down, TryLock
// returns ErrUnavailable.
func TestTryLockDuringAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		slowly(w, storetest.AcquireLease, 250*time.Millisecond, errDown)
		var tries []*pending
		for i := range 4000 {
			tries = append(tries, start(func() (*lock.Lease, error) {
				if i%10 == 9 {
					return l.Lock(t.Context(), "k")
				}
				return l.TryLock(t.Context(), "k")
			}))
			if i%400 == 0 {
				time.Sleep(50 * time.Millisecond)
			}
		}
		time.Sleep(4000 * 250 * time.Millisecond)
		for i, p := range tries {
			if !p.returned() || !errors.Is(p.err, store.ErrUnavailable) || errors.Is(p.err, lock.ErrNotAcquired) {
				t.Fatalf("call %d: %v", i, p.err)
			}
		}
		if n := w.Calls(storetest.AcquireLease); n > 410 {
			t.Errorf("the store was called %d times", n)
		}
		w.Hook(nil, nil)
		mustUnlock(t, mustLock(t, l, "k"))
	})
}

// Concurrent calls of TryLock share one request and its reply.
func TestConcurrentTryLock(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		slowly(w, storetest.AcquireLease, time.Millisecond, nil)
		tryAll := func() (got []*lock.Lease) {
			t.Helper()
			var tries []*pending
			for range 100 {
				tries = append(tries, start(func() (*lock.Lease, error) { return l.TryLock(t.Context(), "k") }))
			}
			time.Sleep(time.Second)
			for _, p := range tries {
				var held *lock.HeldError
				switch {
				case !p.returned():
					t.Fatal("waits")
				case p.err == nil:
					got = append(got, p.lease)
				case !errors.As(p.err, &held) || held.Holder == "" || held.Remaining <= 0:
					t.Fatalf("%+v", p.err)
				}
			}
			return got
		}
		got := tryAll()
		if len(got) != 1 || w.Calls(storetest.AcquireLease) != 1 {
			t.Fatalf("%d leases, %d requests", len(got), w.Calls(storetest.AcquireLease))
		}
		if more := tryAll(); len(more) != 0 || w.Calls(storetest.AcquireLease) != 1 {
			t.Errorf("%d more leases, %d requests", len(more), w.Calls(storetest.AcquireLease))
		}
		mustUnlock(t, got[0])
		other := mustLock(t, newLocker(t, w), "k")
		before := w.Calls(storetest.AcquireLease)
		if more := tryAll(); len(more) != 0 || w.Calls(storetest.AcquireLease) != before+1 {
			t.Errorf("%d leases of a lock that is held, %d requests", len(more), w.Calls(storetest.AcquireLease)-before)
		}
		mustUnlock(t, other)
	})
}

// TryLock waits for a release in flight, and is granted the lock.
func TestTryLockDuringARelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease := mustLock(t, l, "k")
		slowly(w, storetest.ReleaseLeases, time.Second, nil)
		go func() { _ = lease.Unlock(t.Context()) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancelled := start(func() (*lock.Lease, error) { return l.TryLock(ctx, "k") })
		waits := start(func() (*lock.Lease, error) { return l.TryLock(t.Context(), "k") })
		cancel()
		if !cancelled.returned() || !errors.Is(cancelled.err, context.Canceled) || errors.Is(cancelled.err, lock.ErrNotAcquired) {
			t.Errorf("cancelled: %v", cancelled.err)
		}
		time.Sleep(time.Second)
		if !waits.returned() || waits.err != nil {
			t.Fatalf("TryLock: %v", waits.err)
		}
		w.Hook(nil, nil)
		mustUnlock(t, waits.lease)
		wantFree(t, w, "k")
	})
}

// If the context of a caller with a shared request in flight ends, the next caller sends its own.
func TestSharedRequestIsCancelled(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		ctx, cancel := context.WithCancel(t.Context())
		w.Hook(func(op storetest.Op) error {
			if op == storetest.AcquireLease && ctx.Err() == nil {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, nil)
		cancelled := start(func() (*lock.Lease, error) { return l.TryLock(ctx, "k") })
		first := start(func() (*lock.Lease, error) { return l.TryLock(t.Context(), "k") })
		second := start(func() (*lock.Lease, error) { return l.TryLock(t.Context(), "k") })
		cancel()
		if !cancelled.returned() || !errors.Is(cancelled.err, context.Canceled) {
			t.Errorf("cancelled: %v", cancelled.err)
		}
		if !first.returned() || first.err != nil {
			t.Fatalf("the next: %v", first.err)
		}
		if !second.returned() || !errors.Is(second.err, lock.ErrNotAcquired) {
			t.Errorf("the one after it: %v", second.err)
		}
		mustUnlock(t, first.lease)
		wantFree(t, w, "k")
	})
}

// A caller whose context ends before any request has reached the store does not get ErrNotAcquired.
func TestLockEndsDuringAnOutage(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		slowly(w, storetest.AcquireLease, time.Second, errDown)
		first := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := l.Lock(ctx, "k")
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("%v", err)
		}
		time.Sleep(2 * time.Second)
		if !first.returned() || !errors.Is(first.err, store.ErrUnavailable) {
			t.Errorf("%v", first.err)
		}
	})
}

// A lease that is neither renewed nor unlocked allows one run per period.
func TestOncePerPeriod(t *testing.T) {
	for name, opts := range map[string][]lock.Option{
		"": nil, "fair": {lock.WithFair()}, "short": {lock.WithMaxHold(ttl / 3)},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				l := newLocker(t, w, append(opts, lock.WithoutRenewal())...)
				for call, acquire := range map[string]func(context.Context, string) (*lock.Lease, error){
					"TryLock": l.TryLock, "Lock": l.Lock, "RLock": l.RLock,
				} {
					n := 0
					for range 6 {
						if _, err := acquire(t.Context(), call); err == nil {
							n++
						}
						if _, err := l.TryLock(t.Context(), call); !errors.Is(err, lock.ErrNotAcquired) {
							t.Errorf("twice in a period: %v", err)
						}
						<-time.After(ttl)
					}
					if n != 6 {
						t.Errorf("%s: %d of 6", call, n)
					}
				}
			})
		})
	}
}

// The end of a lease is read from the clock, and does not depend on a timer.
func TestTryLockAtTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal())
		stuck := mustLock(t, l, "k")
		time.Sleep(time.Until(stuck.ValidUntil()) - time.Nanosecond)
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) || w.Calls(storetest.AcquireLease) != 1 {
			t.Errorf("before the end: %v, %d requests", err, w.Calls(storetest.AcquireLease))
		}
		time.Sleep(time.Nanosecond)
		if _, err := l.TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) || w.Calls(storetest.AcquireLease) != 2 {
			t.Errorf("at the end: %v, %d requests; want the store's reply", err, w.Calls(storetest.AcquireLease))
		}
	})
}

// A downgrade extends the lease, which is not renewed.
func TestDowngradeWithoutRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal())
		lease := mustLock(t, l, "k")
		time.Sleep(ttl / 2)
		ok(t, lease.Downgrade(t.Context()))
		time.Sleep(ttl - time.Second)
		wantValid(t, lease)
		time.Sleep(time.Second)
		wantEnded(t, lease, lock.ErrExpired)
		if n := w.Calls(storetest.RenewLeases); n != 0 {
			t.Errorf("renewed %d times", n)
		}
	})
}

// A Locker keeps nothing of expired leases, even if they are not unlocked.
func TestExpiredLeasesAreForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal())
		var leases []weak.Pointer[lock.Lease]
		for _, key := range []string{"a", "b", "c"} {
			leases = append(leases, weak.Make(mustLock(t, l, key)))
			shared := must(l.RLock(t.Context(), "shared"))
			leases = append(leases, weak.Make(shared))
		}
		time.Sleep(ttl)
		synctest.Wait()
		runtime.GC()
		for i, lease := range leases {
			if lease.Value() != nil {
				t.Errorf("lease %d is kept", i)
			}
		}
	})
}
