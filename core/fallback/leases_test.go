package fallback_test

import (
	"context"
	"errors"
	"iter"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const ttl = 30 * time.Second // the default of a permit

// fixture is a Semaphore with a stand-in and faked time.
type fixture struct {
	*testing.T
	primary, standIn *storetest.Faulty
	*semaphore.Semaphore
}

func with(t *testing.T, capacity int, share float64, test func(t *testing.T, f fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := fixture{T: t, primary: storetest.NewFaulty(memstore.New()), standIn: storetest.NewFaulty(memstore.New())}
		t.Cleanup(func() { _, _ = f.primary.Close(), f.standIn.Close() })
		f.Semaphore = must(semaphore.New(must(fallback.Leases(f.primary, f.standIn, share)), "test", capacity))
		t.Cleanup(func() { _ = f.Close() })
		test(t, f)
	})
}

func (f fixture) acquire(n int) *semaphore.Permit {
	f.Helper()
	permit, err := f.TryAcquireN(f.Context(), "k", n)
	if err != nil {
		f.Fatalf("TryAcquireN of %d: %v", n, err)
	}
	return permit
}

func (f fixture) release(permits ...*semaphore.Permit) {
	f.Helper()
	for _, p := range permits {
		if err := p.Release(f.Context()); err != nil {
			f.Errorf("Release: %v", err)
		}
	}
}

// inUse mends both stores, and checks the weight in use, and that neither has a queue.
func (f fixture) inUse(primary, standIn int) {
	f.Helper()
	f.primary.Mend(storetest.Any)
	f.standIn.Mend(storetest.Any)
	f.waiting(primary, standIn, 0)
}

// waiting checks the weight in use in both stores, and the number of waiters in the stand-in.
func (f fixture) waiting(primary, standIn, waiting int) {
	f.Helper()
	synctest.Wait()
	p, err1 := f.primary.InspectLease(f.Context(), store.SemaphoreKind+"test", "k")
	s, err2 := f.standIn.InspectLease(f.Context(), store.SemaphoreKind+"test", "k")
	if err := errors.Join(err1, err2); err != nil || p.InUse != primary || p.Waiting != 0 || s.InUse != standIn || s.Waiting != waiting {
		f.Errorf("%+v and %+v, %v, want %d and %d in use, %d waiting", p, s, err, primary, standIn, waiting)
	}
}

// waiter is a call that waits for a permit.
type waiter struct {
	done   chan struct{}
	permit *semaphore.Permit
	err    error
}

// granted waits for the permit, and returns it.
func (w *waiter) granted(t *testing.T) *semaphore.Permit {
	t.Helper()
	if <-w.done; w.err != nil {
		t.Fatalf("a waiter: %v", w.err)
	}
	return w.permit
}

func (f fixture) wait(ctx context.Context) *waiter {
	w := &waiter{done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.permit, w.err = f.Acquire(ctx, "k")
	}()
	synctest.Wait()
	return w
}

// Without an outage the store behaves as primary.
func TestContract(t *testing.T) {
	storetest.Leases(t, func(t *testing.T, test func(*testing.T, storetest.Harness[store.Leases])) {
		synctest.Test(t, func(t *testing.T) {
			primary, standIn := memstore.New(), memstore.New()
			defer primary.Close()
			defer standIn.Close()
			leases := must(fallback.Leases(primary, standIn, 0.5))
			test(t, storetest.Harness[store.Leases]{Store: leases, Advance: time.Sleep})
		})
	})
}

// While primary is down, the stand-in keeps the contract. Only the state is primary's.
func TestContractInAnOutage(t *testing.T) {
	storetest.Leases(t, func(t *testing.T, test func(*testing.T, storetest.Harness[store.Leases])) {
		synctest.Test(t, func(t *testing.T) {
			primary, standIn := storetest.NewFaulty(memstore.New()), memstore.New()
			defer func() { _ = primary.Close() }()
			defer standIn.Close()
			primary.Break(storetest.AcquireLease, storetest.Down)
			primary.Break(storetest.AwaitLease, storetest.Down)
			leases := must(fallback.Leases(primary, standIn, 1))
			switch _, name, _ := strings.Cut(t.Name(), "/"); {
			case strings.HasPrefix(name, "lock:"), strings.Contains(name, "kinds"), strings.Contains(name, "any_bytes"):
				t.Skip("locks are primary's alone")
			case strings.Contains(name, "can_never_be_granted"), strings.Contains(name, "await_of_an_unknown_request"):
				t.Skip("a request above the share is primary's error")
			}
			test(t, storetest.Harness[store.Leases]{Store: reporting{leases.(abilities), standIn}, Advance: time.Sleep})
		})
	})
}

// reporting reports the stand-in's state, and revokes there.
type reporting struct {
	abilities
	standIn *memstore.Store
}

// abilities are those of the leases of a fallback.
type abilities interface {
	store.Leases
	store.LeaseDowngrader
	store.LeaseVerifier
	store.LeaseLister
	store.LeaseRevoker
}

func (r reporting) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	return r.standIn.InspectLease(ctx, name, key)
}

func (r reporting) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	return r.standIn.RevokeLease(ctx, name, key, fence)
}

func (r reporting) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	return r.standIn.ListLeases(ctx, name)
}

func TestPermitsOfAnOutage(t *testing.T) {
	with(t, 5, 0.5, func(t *testing.T, f fixture) {
		before := f.acquire(5)
		if _, err := f.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("a full semaphore: %v", err)
		}
		if n := f.standIn.Calls(storetest.Any); n != 0 {
			t.Errorf("%d calls of the stand-in without an outage", n)
		}
		f.primary.Break(storetest.Any, storetest.Down)
		one, two := f.acquire(1), f.acquire(1)
		if _, err := f.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("a third of 2.5: %v", err)
		}
		if _, err := f.TryAcquireN(t.Context(), "k", 3); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("3 of 2.5: %v", err)
		}
		waiter := f.wait(t.Context())
		time.Sleep(3 * ttl)
		if err := one.Context().Err(); err != nil {
			t.Errorf("not renewed in the stand-in: %v", context.Cause(one.Context()))
		}
		f.release(one)
		moved := waiter.granted(t)
		f.primary.Mend(storetest.Any)
		after := f.acquire(5) // the first lease has expired
		two.ReleaseAsync()
		f.inUse(5, 1)
		f.release(moved, after)
		f.inUse(0, 0)
		if err := before.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("a permit that expired in the outage: %v", err)
		}
	})
}

// A store that is full, misconfigured or closed is not down: its permits still count.
func TestNoFallbackForAStoreThatIsNotDown(t *testing.T) {
	with(t, 5, 0.5, func(t *testing.T, f fixture) {
		for fault, want := range map[storetest.Fault]error{
			storetest.Full: store.ErrFull, storetest.Misconfigured: store.ErrMisconfigured,
		} {
			f.primary.Break(storetest.AcquireLease, fault)
			if _, err := f.TryAcquire(t.Context(), "k"); !errors.Is(err, want) || f.standIn.Calls(storetest.Any) != 0 {
				t.Errorf("%v: %d calls of the stand-in, %v", want, f.standIn.Calls(storetest.Any), err)
			}
		}
	})
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		capacity int
		share    float64
		want     int
	}{
		{1, 0.001, 1}, {10, 0.1, 1}, {10, 0.19, 1}, {10, 0.3, 3}, {100, 0.29, 29}, {7, 1, 7}, {3, 1.0 / 3, 1},
		{store.MaxCapacity, 1, store.MaxCapacity}, {store.MaxCapacity, 0.5, store.MaxCapacity / 2},
	} {
		with(t, c.capacity, c.share, func(t *testing.T, f fixture) {
			f.primary.Break(storetest.AcquireLease, storetest.Down)
			permit := f.acquire(c.want)
			if _, err := f.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
				t.Errorf("%v of %d is more than %d: %v", c.share, c.capacity, c.want, err)
			}
			f.release(permit)
		})
	}
}

// A permit that primary may have granted before it failed is released there.
func TestUnconfirmedRequestIsWithdrawn(t *testing.T) {
	with(t, 1, 1, func(t *testing.T, f fixture) {
		f.primary.Break(storetest.AcquireLease, storetest.LostReply)
		permit := f.acquire(1)
		f.inUse(0, 1)
		f.release(permit)
		f.inUse(0, 0)
	})
}

// The withdrawal is retried until primary replies.
func TestWithdrawalIsRetried(t *testing.T) {
	with(t, 1, 1, func(t *testing.T, f fixture) {
		f.primary.Break(storetest.AcquireLease, storetest.LostReply)
		f.primary.BreakNext(storetest.ReleaseLeases, storetest.Down, 3)
		permit := f.acquire(1)
		time.Sleep(ttl / 2)
		f.inUse(0, 1)
		f.release(permit)
	})
}

// A request that waits when the outage begins moves to the stand-in, and leaves primary's queue.
func TestWaitersMove(t *testing.T) {
	with(t, 1, 1, func(t *testing.T, f fixture) {
		other := must(semaphore.New(f.primary, "test", 1))
		defer func() { _ = other.Close() }()
		permit := must(other.Acquire(t.Context(), "k"))
		f.primary.Break(storetest.AwaitLease, storetest.Down)
		moved := f.wait(t.Context()).granted(t)
		behind := f.wait(t.Context()) // in the process
		f.waiting(1, 1, 0)
		f.release(moved)
		f.release(permit, behind.granted(t))
		f.inUse(0, 0)
	})
}

// The end of the caller's context is no outage.
func TestNoFallbackForAnEndedContext(t *testing.T) {
	with(t, 1, 1, func(t *testing.T, f fixture) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		f.primary.Break(storetest.AcquireLease, storetest.Hung)
		if _, err := f.Acquire(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v", err)
		}
		if n := f.standIn.Calls(storetest.Any); n != 0 {
			t.Errorf("%d calls of the stand-in", n)
		}
		f.inUse(0, 0)
	})
}

func TestStandInThatFailsToo(t *testing.T) {
	with(t, 1, 1, func(t *testing.T, f fixture) {
		f.primary.Break(storetest.AcquireLease, storetest.Down)
		f.standIn.Break(storetest.AcquireLease, storetest.Full)
		if _, err := f.Acquire(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, store.ErrFull) {
			t.Errorf("Acquire: %v", err)
		}
		// A lost reply is released there, too.
		f.standIn.Break(storetest.AcquireLease, storetest.LostReply)
		if _, err := f.Acquire(t.Context(), "k"); !errors.Is(err, store.ErrUnconfirmed) {
			t.Errorf("Acquire: %v", err)
		}
		f.inUse(0, 0)
	})
}

func TestCapacityChangesInTheStandIn(t *testing.T) {
	with(t, 2, 0.5, func(t *testing.T, f fixture) {
		f.primary.Break(storetest.AcquireLease, storetest.Down)
		permit := f.acquire(1)
		waiter := f.wait(t.Context())
		if err := f.SetCapacity(4); err != nil {
			t.Fatal(err)
		}
		f.release(permit, waiter.granted(t))
	})
}

// A waiter that no longer fits into the share fails, and leaves nothing.
func TestCapacityShrinksInTheStandIn(t *testing.T) {
	with(t, 8, 0.5, func(t *testing.T, f fixture) {
		f.primary.Break(storetest.AcquireLease, storetest.Down)
		permit := f.acquire(3)
		failed := make(chan error)
		go func() {
			_, err := f.AcquireN(t.Context(), "k", 2)
			failed <- err
		}()
		synctest.Wait()
		if err := f.SetCapacity(2); err != nil {
			t.Fatal(err)
		}
		if err := <-failed; !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("2 of 1: %v", err)
		}
		f.inUse(0, 3)
		f.release(permit)
		f.inUse(0, 0)
	})
}

// A waiter whose stand-in fails too leaves no place in either queue.
func TestStandInFailsWhileWaiting(t *testing.T) {
	with(t, 4, 0.5, func(t *testing.T, f fixture) {
		f.primary.Break(storetest.AcquireLease, storetest.Down)
		permit := f.acquire(2)
		waiter := f.wait(t.Context())
		f.standIn.BreakNext(storetest.AcquireLease, storetest.Down, 1)
		if err := f.SetCapacity(6); err != nil { // which repeats the request
			t.Fatal(err)
		}
		<-waiter.done
		if waiter.err == nil {
			t.Error("a waiter whose stand-in failed has a permit")
		}
		f.inUse(0, 2)
		f.release(permit)
	})
}

// Close, and primary's Shutdown, wait for permits of both stores.
func TestClose(t *testing.T) {
	for name, end := range map[string]func(fixture) error{
		"Close":    func(f fixture) error { return f.Close() },
		"Shutdown": func(f fixture) error { return f.primary.Shutdown(f.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			with(t, 2, 1, func(t *testing.T, f fixture) {
				first := f.acquire(1)
				f.primary.Break(storetest.AcquireLease, storetest.Down)
				second := f.acquire(1)
				for _, p := range []*semaphore.Permit{first, second} {
					context.AfterFunc(p.Context(), func() { f.release(p) })
				}
				if err := end(f); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				for _, p := range []*semaphore.Permit{first, second} {
					if cause := context.Cause(p.Context()); !errors.Is(cause, semaphore.ErrClosed) {
						t.Errorf("the permit's context: %v", cause)
					}
				}
				if state, err := f.standIn.InspectLease(t.Context(), "test", "k"); err != nil || state.InUse != 0 {
					t.Errorf("the stand-in has %+v, %v", state, err)
				}
			})
		})
	}
}

func TestLeasesRefuses(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	for name, make := range map[string]func() (store.Leases, error){
		"nil primary":     func() (store.Leases, error) { return fallback.Leases(nil, st, 1) },
		"nil stand-in":    func() (store.Leases, error) { return fallback.Leases(st, nil, 1) },
		"typed nil":       func() (store.Leases, error) { return fallback.Leases(st, (*memstore.Store)(nil), 1) },
		"no share":        func() (store.Leases, error) { return fallback.Leases(st, st, 0) },
		"a share above 1": func() (store.Leases, error) { return fallback.Leases(st, st, 1.01) },
		"a share of NaN":  func() (store.Leases, error) { return fallback.Leases(st, st, math.NaN()) },
	} {
		if p, err := make(); err == nil || p != nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A lock is primary's alone: a stand-in for it would not exclude anything.
func TestNoFallbackForLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, standIn := storetest.NewFaulty(memstore.New()), storetest.NewFaulty(memstore.New())
		defer func() { _, _ = primary.Close(), standIn.Close() }()
		locker := must(lock.New(must(fallback.Leases(primary, standIn, 1)), "test"))
		defer func() { _ = locker.Close() }()
		held := must(locker.Lock(t.Context(), "k"))
		primary.Break(storetest.Any, storetest.Down)
		if _, err := locker.Lock(t.Context(), "other"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Lock: %v", err)
		}
		if err := held.Verify(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Verify: %v", err)
		}
		primary.Mend(storetest.Any)
		if err := held.Unlock(t.Context()); err != nil || standIn.Calls(storetest.Any) != 0 {
			t.Errorf("Unlock: %v; %d calls of the stand-in", err, standIn.Calls(storetest.Any))
		}
	})
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
