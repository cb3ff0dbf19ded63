package tokenbucket_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// waitingFor returns a limiter whose bucket of key k has its next token after a second.
func waitingFor(t *testing.T) (*tokenbucket.Limiter, *storetest.Faulty) {
	t.Helper()
	l, st := newLimiter(t, tokenbucket.PerSecond(1))
	if d, err := l.Allow(t.Context(), "k"); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	return l, st
}

func TestWaitReturnsWithTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLimiter(t, tokenbucket.PerSecond(1))
		start := time.Now()
		for n := range 4 {
			if err := l.Wait(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
			if at, want := time.Since(start), time.Duration(n)*time.Second; at < want || at > want+time.Millisecond {
				t.Errorf("token %d after %v", n, at)
			}
		}
	})
}

// Waiters are served in order of arrival, and one of them calls the store.
func TestWaitersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := waitingFor(t)
		before := st.Calls(storetest.TakeTokens)
		const callers = 20
		var (
			mu     sync.Mutex
			served []int
			wg     sync.WaitGroup
		)
		for n := range callers {
			wg.Go(func() {
				if err := l.Wait(t.Context(), "k"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				served = append(served, n)
			})
			synctest.Wait()
		}
		wg.Wait()
		if !slices.IsSorted(served) || len(served) != callers {
			t.Errorf("served in the order %v", served)
		}
		if calls := st.Calls(storetest.TakeTokens) - before; calls > 2*callers+2 {
			t.Errorf("%d calls for %d tokens", calls, callers)
		}
	})
}

func TestWaitFailsAtOnceIfTheDeadlineIsTooEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := waitingFor(t)
		start := time.Now()
		short, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		if err := l.Wait(short, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("alone: %v", err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.Wait(t.Context(), "k") })
		synctest.Wait()
		if err := l.Wait(short, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("behind another: %v", err)
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("after %v", waited)
		}
		if err := l.WaitN(t.Context(), "k", 2); !errors.Is(err, tokenbucket.ErrCostExceedsBurst) {
			t.Errorf("more than the burst: %v", err)
		}
		wg.Wait()
		// The failed calls were charged nothing: the next token is available a second after the
		// last.
		if err := l.Wait(t.Context(), "k"); err != nil || time.Since(start) > 2001*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// A waiter whose context ends does not delay the others.
func TestWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := waitingFor(t)
		start := time.Now()
		first, cancel := context.WithCancel(t.Context())
		second, alsoCancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, ctx := range []context.Context{first, second} {
			wg.Go(func() {
				if err := l.Wait(ctx, "k"); !errors.Is(err, context.Canceled) {
					t.Errorf("cancelled: %v", err)
				}
			})
			synctest.Wait()
		}
		wg.Go(func() {
			if err := l.Wait(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		alsoCancel()
		cancel()
		wg.Wait()
		if waited := time.Since(start); waited > 1001*time.Millisecond {
			t.Errorf("the third waited %v", waited)
		}
	})
}

func TestWaitDuringAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := waitingFor(t)
		failed := make(chan error, 1)
		go func() { failed <- l.Wait(t.Context(), "k") }()
		synctest.Wait()
		st.Break(storetest.TakeTokens, storetest.Down)
		if err := <-failed; !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("while waiting: %v", err)
		}
		if err := l.Wait(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("at the beginning: %v", err)
		}
		st.Mend(storetest.Any)
		if err := l.Wait(t.Context(), "k"); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// Who waits is served by a new plan at once, and so is who comes after.
func TestAChangeOfPlanEndsWaits(t *testing.T) {
	for name, plan := range map[string]tokenbucket.Plan{"unlimited": tokenbucket.Unlimited(), "another": tokenbucket.PerSecond(1000).Named("fast")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := newLimiter(t, tokenbucket.PerHour(1))
				if err := l.Wait(t.Context(), "k"); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				done := make(chan error, 3)
				for range 3 {
					go func() { done <- l.Wait(t.Context(), "k") }()
				}
				synctest.Wait()
				if err := l.SetPlan(plan); err != nil {
					t.Fatal(err)
				}
				brief, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := l.Wait(brief, "k"); err != nil {
					t.Errorf("one that comes after the change: %v", err)
				}
				for range 3 {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("they waited for %v", took)
				}
			})
		})
	}
}

// A waiter gets the tokens that a reservation gives back, and the candidate is asked once for it.
func TestWaitForWhatIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewFaulty(memstore.New())
		l := must(tokenbucket.New(st, "api", tokenbucket.PerDay(1), tokenbucket.WithCandidate(tokenbucket.PerDay(5).Named("more"))))
		r := must(l.Reserve(t.Context(), "k", tokenbucket.Cost{"api": 1}))
		time.AfterFunc(time.Minute, func() { _ = r.Cancel(t.Context()) })
		calls, began := st.Calls(storetest.TakeTokens), time.Now()
		if err := l.Wait(t.Context(), "k"); err != nil || time.Since(began) > 70*time.Second {
			t.Errorf("waited for %v: %v", time.Since(began), err)
		}
		if n := st.Calls(storetest.TakeTokens) - calls; n > 10 {
			t.Errorf("%d decisions", n)
		}
	})
}
