package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// endings are the orderly ends of a Locker.
var endings = map[string]func(*lock.Locker, *wiretap) error{
	"Close":       func(l *lock.Locker, _ *wiretap) error { return l.Close() },
	"the store's": func(_ *lock.Locker, w *wiretap) error { return w.Shutdown(context.Background()) },
	"the store's, twice": func(_ *lock.Locker, w *wiretap) error {
		return errors.Join(w.Shutdown(context.Background()), w.Shutdown(context.Background()))
	},
	"both": func(l *lock.Locker, w *wiretap) error {
		return errors.Join(w.Shutdown(context.Background()), l.Close())
	},
	"the store's Close": func(_ *lock.Locker, w *wiretap) error { return w.Close() },
}

// A request that is granted during a shutdown is released before the shutdown returns.
func TestShutdownWaitsForRequestsInFlight(t *testing.T) {
	for name, end := range endings {
		for call, opts := range map[string][]lock.Option{"": nil, "fair": {lock.WithFair()}} {
			t.Run(name+call, func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *wiretap) {
					l := newLocker(t, w, opts...)
					w.Hook(nil, storetest.On(storetest.AcquireLease, func() error { // granted, and its reply is in flight
						time.Sleep(100 * time.Millisecond)
						return nil
					}))
					sends := start(func() (*lock.Lease, error) { return l.TryLock(t.Context(), "k") })
					joins := start(func() (*lock.Lease, error) { return l.TryLock(t.Context(), "k") })
					waits := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
					reads := start(func() (*lock.Lease, error) { return l.RLock(t.Context(), "other") })
					if err := end(l, w); err != nil {
						t.Errorf("%v", err)
					}
					if name != "the store's Close" {
						wantFree(t, w, "k")
						wantFree(t, w, "other")
					}
					for name, p := range map[string]*pending{"sends": sends, "joins": joins, "waits": waits, "reads": reads} {
						if !p.returned() || !errors.Is(p.err, lock.ErrClosed) && !errors.Is(p.err, lock.ErrNotAcquired) {
							t.Errorf("%s: %v", name, p.err)
						}
					}
				})
			})
		}
	}
}

// Close withdraws from queues before it releases leases, so that nothing is granted to the closing
// Locker, and another has the lock at once.
func TestCloseWithdrawsFromQueues(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l, other := newLocker(t, w), newLocker(t, w.Store)
		lease, foreign := mustLock(t, l, "mine"), mustLock(t, other, "foreign")
		var waiting []*pending
		for range 3 {
			waiting = append(waiting,
				start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "mine") }),
				start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "foreign") }),
				start(func() (*lock.Lease, error) { return l.RLock(t.Context(), "mine") }))
		}
		next := start(func() (*lock.Lease, error) { return other.Lock(t.Context(), "mine") })
		grants := len(w.granted)
		ok(t, l.Close())
		for i, p := range waiting {
			if !p.returned() || !errors.Is(p.err, lock.ErrClosed) || !errors.Is(p.err, store.ErrClosed) {
				t.Errorf("waiter %d: %v", i, p.err)
			}
		}
		wantEnded(t, lease, lock.ErrReleased)
		if len(w.granted) != grants {
			t.Error("a closing Locker was granted a lock")
		}
		if !next.returned() || next.err != nil {
			t.Fatalf("the other: %v", next.err)
		}
		mustUnlock(t, next.lease)
		mustUnlock(t, foreign)
		wantFree(t, w, "mine")
		wantFree(t, w, "foreign")
	})
}

// The error has the number of unconfirmed releases, which Close retries.
func TestShutdownReportsUnconfirmedReleases(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		for i := range 300 {
			mustLock(t, l, string(rune('a'+i)))
		}
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		err := w.Shutdown(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "300 unconfirmed releases") || time.Since(began) > time.Second {
			t.Errorf("Shutdown: %v after %v", err, time.Since(began))
		}
		if err := l.Close(); err == nil || !strings.Contains(err.Error(), "300 unconfirmed releases") {
			t.Errorf("Close: %v", err)
		}
		w.Hook(nil, nil)
		time.Sleep(2 * time.Second)
		for i := range 300 {
			wantFree(t, w, string(rune('a'+i)))
		}
	})
}

// After a shutdown all calls return the same error, which is not that of an outage.
func TestCallsAfterShutdown(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				l := newLocker(t, w)
				if err := end(l, w); err != nil {
					t.Errorf("%v", err)
				}
				for call, acquire := range map[string]func(context.Context, string) (*lock.Lease, error){
					"Lock": l.Lock, "TryLock": l.TryLock, "RLock": l.RLock, "TryRLock": l.TryRLock,
				} {
					if _, err := acquire(t.Context(), "k"); !errors.Is(err, store.ErrClosed) || store.Down(err) {
						t.Errorf("%s: %v", call, err)
					}
				}
				if _, err := l.LockAll(t.Context(), []string{"a", "b"}); !errors.Is(err, store.ErrClosed) {
					t.Errorf("LockAll: %v", err)
				}
			})
		})
	}
}
