package lock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
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
		context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) })
		ok(t, l.Close())
		for i, p := range waiting {
			if !p.returned() || !errors.Is(p.err, lock.ErrClosed) || !errors.Is(p.err, store.ErrClosed) {
				t.Errorf("waiter %d: %v", i, p.err)
			}
		}
		wantEnded(t, lease, lock.ErrClosed)
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
			lease := mustLock(t, l, string(rune('a'+i)))
			context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) })
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

// process is one of several with a store each, whose state they share. Its own Shutdown is not
// theirs.
type process struct {
	*storetest.Faulty
	hooks hooks.Shutdown
}

func (p *process) AtShutdown(f func(context.Context) error) (remove func()) {
	return p.hooks.AtShutdown(f)
}
func (p *process) Shutdown(ctx context.Context) error { return p.hooks.Run(ctx) }

// withProcesses runs a test in a bubble with the Lockers of two processes, of which the first is to
// end.
func withProcesses(t *testing.T, test func(t *testing.T, p *process, mine, other *lock.Locker), opts ...lock.Option) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		p := &process{Faulty: w.Faulty}
		test(t, p, newLocker(t, p, opts...), newLocker(t, w))
	})
}

// A holder that takes a while to stop, longer than its lease, keeps the lock until it has stopped.
// The shutdown waits for it.
func TestShutdownWaitsForHolders(t *testing.T) {
	const short, work = time.Second, 4 * time.Second
	for name, end := range map[string]func(*process, *lock.Locker) error{
		"Close":    func(_ *process, l *lock.Locker) error { return l.Close() },
		"Shutdown": func(p *process, _ *lock.Locker) error { return p.Shutdown(context.Background()) },
		"another Shutdown, which ends earlier": func(p *process, _ *lock.Locker) error {
			ctx, cancel := context.WithTimeout(context.Background(), short)
			defer cancel()
			time.AfterFunc(short/2, func() { _ = p.Shutdown(ctx) })
			return p.Shutdown(context.Background())
		},
		"Close during Shutdown": func(p *process, l *lock.Locker) error {
			time.AfterFunc(short, func() { _ = l.Close() })
			return p.Shutdown(context.Background())
		},
	} {
		t.Run(name, func(t *testing.T) {
			withProcesses(t, func(t *testing.T, p *process, mine, other *lock.Locker) {
				began := time.Now()
				stopped := make(chan error)
				for key, acquire := range map[string]func(context.Context, string) (*lock.Lease, error){"k": mine.Lock, "read": mine.RLock} {
					outer := must(acquire(t.Context(), key))
					inner := must(acquire(context.WithoutCancel(outer.Context()), key))
					go func() {
						<-inner.Context().Done()
						if !errors.Is(context.Cause(inner.Context()), lock.ErrClosed) || time.Since(began) != 0 {
							t.Errorf("the context ended with %v after %v", context.Cause(inner.Context()), time.Since(began))
						}
						time.Sleep(work)
						stopped <- errors.Join(inner.Unlock(t.Context()), outer.Unlock(t.Context()))
					}()
				}
				local := start(func() (*lock.Lease, error) { return mine.Lock(t.Context(), "k") })
				next := []*pending{
					start(func() (*lock.Lease, error) { return other.Lock(t.Context(), "k") }),
					start(func() (*lock.Lease, error) { return other.Lock(t.Context(), "read") }),
				}
				ended := make(chan error, 1)
				go func() { ended <- end(p, mine) }()
				if !local.returned() || !errors.Is(local.err, lock.ErrClosed) {
					t.Errorf("a waiter of the process: %v", local.err)
				}
				time.Sleep(work - time.Millisecond)
				if len(ended) != 0 || next[0].returned() || next[1].returned() {
					t.Error("the lock was released while its holder worked")
				}
				ok(t, errors.Join(<-stopped, <-stopped))
				ok(t, <-ended)
				if took := time.Since(began); took != work {
					t.Errorf("the shutdown took %v", took)
				}
				for _, n := range next {
					if !n.returned() || n.err != nil {
						t.Fatalf("the next: %v", n.err)
					}
					mustUnlock(t, n.lease)
				}
			}, lock.WithTTL(short))
		})
	}
}

// What is held at the end of a shutdown expires; a release after it is still one.
func TestShutdownLeavesHolders(t *testing.T) {
	const short = 3 * time.Second
	for name, unlocks := range map[string]bool{"": false, "unlocks": true} {
		t.Run(name, func(t *testing.T) {
			withProcesses(t, func(t *testing.T, p *process, mine, other *lock.Locker) {
				lease := mustLock(t, mine, "k")
				next := start(func() (*lock.Lease, error) { return other.Lock(t.Context(), "k") })
				time.Sleep(time.Minute)
				for range 2 {
					ctx, cancel := context.WithTimeout(t.Context(), short/4)
					err := p.Shutdown(ctx)
					cancel()
					if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 leases are not released") {
						t.Errorf("Shutdown: %v", err)
					}
				}
				wantEnded(t, lease, lock.ErrClosed)
				if next.returned() {
					t.Error("the lock was released while its holder worked")
				}
				if unlocks {
					mustUnlock(t, lease)
				} else {
					time.Sleep(short)
				}
				if !next.returned() || next.err != nil {
					t.Fatalf("the next: %v", next.err)
				}
				mustUnlock(t, next.lease)
				ok(t, p.Shutdown(t.Context()))
			}, lock.WithTTL(short))
		})
	}
}

// A lease that is to run out is neither released nor waited for, and one with a maximum until that.
func TestShutdownOfLeasesThatEnd(t *testing.T) {
	const short = 3 * time.Second
	for name, c := range map[string]struct {
		opt   lock.Option
		waits time.Duration // at most
	}{
		"without renewal": {lock.WithoutRenewal(), 0},
		"a maximum":       {lock.WithMaxHold(10 * time.Second), 10*time.Second + short},
	} {
		t.Run(name, func(t *testing.T) {
			withProcesses(t, func(t *testing.T, p *process, mine, other *lock.Locker) {
				lease := mustLock(t, mine, "k")
				next := start(func() (*lock.Lease, error) { return other.Lock(t.Context(), "k") })
				began := time.Now()
				ok(t, p.Shutdown(t.Context()))
				if took := time.Since(began); took > c.waits || took < c.waits-short {
					t.Errorf("Shutdown took %v", took)
				}
				wantEnded(t, lease, lock.ErrClosed)
				if next.returned() {
					t.Error("the lock was released while its holder worked")
				}
				time.Sleep(short)
				if !next.returned() || next.err != nil {
					t.Fatalf("the next: %v", next.err)
				}
				mustUnlock(t, next.lease)
			}, lock.WithTTL(short), c.opt)
		})
	}
}

// A holder that ends its own process does not wait for itself beyond the end of ctx.
func TestShutdownByAHolder(t *testing.T) {
	withProcesses(t, func(t *testing.T, p *process, mine, _ *lock.Locker) {
		err := mine.Do(t.Context(), "k", func(ctx context.Context) error {
			if err := p.Shutdown(ctx); !errors.Is(err, lock.ErrClosed) { // which ends with the shutdown
				t.Errorf("Shutdown: %v", err)
			}
			began := time.Now()
			bounded, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := p.Shutdown(bounded); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("Shutdown: %v after %v", err, time.Since(began))
			}
			if _, err := mine.Lock(context.WithoutCancel(ctx), "k"); !errors.Is(err, lock.ErrClosed) {
				t.Errorf("a re-entry: %v", err)
			}
			return nil
		})
		ok(t, err)
		ok(t, p.Shutdown(t.Context()))
	})
}
