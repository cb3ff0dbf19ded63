package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// ends are the ends of a lease, and the causes of its contexts.
var ends = map[string]struct {
	end   func(t *testing.T, w *wiretap, l *lock.Locker, lease *lock.Lease)
	cause error
}{
	"lost": {func(t *testing.T, w *wiretap, l *lock.Locker, lease *lock.Lease) {
		if done, err := l.ForceUnlock(t.Context(), "k", lease.Fence().Number); !done || err != nil {
			t.Fatalf("ForceUnlock: %v, %v", done, err)
		}
	}, lock.ErrLost},
	"lost without notice": {func(t *testing.T, w *wiretap, _ *lock.Locker, _ *lock.Lease) {
		w.lose(t)
		time.Sleep(ttl/3 + time.Second)
	}, lock.ErrLost},
	"expired": {func(_ *testing.T, w *wiretap, _ *lock.Locker, _ *lock.Lease) {
		w.Hook(storetest.Failing(errDown, storetest.RenewLeases), nil)
		time.Sleep(ttl)
		w.Hook(nil, nil)
	}, lock.ErrExpired},
	"held for too long": {func(_ *testing.T, _ *wiretap, _ *lock.Locker, _ *lock.Lease) {
		time.Sleep(2 * ttl)
	}, lock.ErrExpired},
	"closed": {func(t *testing.T, _ *wiretap, l *lock.Locker, _ *lock.Lease) {
		if err := l.Close(); !errors.Is(err, context.DeadlineExceeded) { // while the lease is held
			t.Errorf("Close: %v", err)
		}
	}, lock.ErrClosed},
}

// A re-entered lease ends with the outer one, whatever its parent context is, and cannot be
// re-entered after that.
func TestReentryOnADetachedContext(t *testing.T) {
	for name, c := range ends {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				l := newLocker(t, w, lock.WithMaxHold(2*ttl))
				outer := mustLock(t, l, "k")
				detached := context.WithoutCancel(outer.Context())
				inner := must(l.Lock(detached, "k"))
				innermost := must(l.RLock(context.WithoutCancel(inner.Context()), "k"))
				time.Sleep(ttl + time.Second) // renewals extend them too
				for _, lease := range []*lock.Lease{outer, inner, innermost} {
					wantValid(t, lease)
				}
				child, cancel := context.WithCancel(innermost.Context())
				defer cancel()
				done := inner.Context().Done()
				c.end(t, w, l, outer)
				synctest.Wait()
				for _, lease := range []*lock.Lease{outer, inner, innermost} {
					wantEnded(t, lease, c.cause)
				}
				select {
				case <-done:
				default:
					t.Error("the context is not done")
				}
				if !errors.Is(context.Cause(child), c.cause) {
					t.Errorf("a derived context ended because of %v", context.Cause(child))
				}
				want := c.cause
				if name == "closed" {
					want = lock.ErrClosed
				}
				for call, enter := range map[string]func(context.Context, string) (*lock.Lease, error){
					"Lock": l.Lock, "TryLock": l.TryLock, "RLock": l.RLock,
				} {
					for _, ctx := range []context.Context{detached, context.WithoutCancel(innermost.Context())} {
						if lease, err := enter(ctx, "k"); lease != nil || !errors.Is(err, want) {
							t.Errorf("%s: %v, %v; want %v", call, lease, err, want)
						}
					}
				}
				_ = innermost.Unlock(t.Context())
				_ = inner.Unlock(t.Context())
				_ = outer.Unlock(t.Context())
			})
		})
	}
}

// The end of a lease is read from the clock, and does not depend on a timer.
func TestReentryAtTheDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w, lock.WithoutRenewal())
		outer := mustLock(t, l, "k")
		detached := context.WithoutCancel(outer.Context())
		inner := must(l.Lock(detached, "k"))
		if !inner.ValidUntil().Equal(outer.ValidUntil()) {
			t.Errorf("valid until %v, the outer lease until %v", inner.ValidUntil(), outer.ValidUntil())
		}
		time.Sleep(time.Until(outer.ValidUntil()))
		if lease, err := l.Lock(detached, "k"); lease != nil || !errors.Is(err, lock.ErrExpired) {
			t.Errorf("%v, %v", lease, err)
		}
		wantEnded(t, inner, lock.ErrExpired)
		if err := inner.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock of a lost lease: %v", err)
		}
		time.Sleep(time.Second)
		if err := outer.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Unlock of a lost lease: %v", err)
		}
	})
}

// The end of the caller's context does not release the lock, so that clean-up can still re-enter
// it.
func TestReentryAfterTheParentHasEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		ctx, cancel := context.WithCancel(t.Context())
		outer := must(l.Lock(ctx, "k"))
		cancel()
		inner := must(l.Lock(context.WithoutCancel(outer.Context()), "k"))
		time.Sleep(2 * ttl)
		wantEnded(t, outer, context.Canceled)
		wantValid(t, inner)
		ok(t, inner.Verify(t.Context()))
		if err := outer.Verify(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("Verify with an ended context: %v", err)
		}
		mustUnlock(t, outer)
		wantValid(t, inner)
		mustUnlock(t, inner)
		wantEnded(t, inner, lock.ErrReleased)
		wantFree(t, w, "k")
	})
}

// The context of a re-entered lease ends when it and all leases within it are released, so that a
// lease that is re-entered often keeps nothing.
func TestReleasedReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		outer := mustLock(t, l, "k")
		inner := must(l.Lock(outer.Context(), "k"))
		innermost := must(l.Lock(inner.Context(), "k"))
		if got, ok := lock.FromContext(innermost.Context()); !ok || got != innermost {
			t.Errorf("the lease in the context: %v, %v", got, ok)
		}
		mustUnlock(t, inner)
		wantValid(t, inner) // innermost derives from it
		mustUnlock(t, innermost)
		wantEnded(t, innermost, lock.ErrReleased)
		wantEnded(t, inner, lock.ErrReleased)
		wantValid(t, outer)
		again, err := l.Lock(context.WithoutCancel(innermost.Context()), "k")
		if err != nil {
			t.Fatalf("within the outer lease: %v", err)
		}
		mustUnlock(t, again)
		mustUnlock(t, outer)
		wantFree(t, w, "k")
	})
}
