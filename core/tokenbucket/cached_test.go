package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// source is a PlanFunc that tests control.
type source struct {
	calls atomic.Int64
	mu    sync.Mutex
	plan  tokenbucket.Plan
	err   error
	takes time.Duration
}

func (s *source) set(plan tokenbucket.Plan, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plan, s.err = plan, err
}

func (s *source) choose(ctx context.Context, _ string) (tokenbucket.Plan, error) {
	s.calls.Add(1)
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plan, s.err
}

func (s *source) called(t *testing.T, want int64) {
	t.Helper()
	if got := s.calls.Swap(0); got != want {
		t.Errorf("the PlanFunc was called %d times, want %d", got, want)
	}
}

func capacity(t *testing.T, l *tokenbucket.Limiter, key string, want int64) {
	t.Helper()
	d, err := l.Allow(t.Context(), key)
	if err != nil || d.Limits()[0].Capacity != want {
		t.Errorf("key %q: %+v, %v, want a capacity of %d", key, d.Limits(), err, want)
	}
}

func TestCachedPlans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{plan: tokenbucket.PerHour(10)}
		l, _ := newLimiter(t, tokenbucket.Cached(s.choose, time.Minute, 100))
		for range 5 {
			capacity(t, l, "a", 10)
		}
		s.called(t, 1)
		s.set(tokenbucket.PerHour(20), nil)
		capacity(t, l, "a", 10)
		capacity(t, l, "b", 20)
		s.called(t, 1)
		time.Sleep(time.Minute)
		capacity(t, l, "a", 20)
		s.called(t, 1)

		s.set(tokenbucket.Unlimited(), nil)
		time.Sleep(time.Minute)
		if d, err := l.Allow(t.Context(), "a"); err != nil || !d.Allowed || len(d.Limits()) != 0 {
			t.Errorf("unlimited: %+v, %v", d, err)
		}
	})
}

// While the source is unavailable, a key keeps its limits, and is decided by its outage policy if it has
// none. The source is not asked for each decision.
func TestCachedPlansOutliveTheirSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{plan: tokenbucket.PerHour(10)}
		l, _ := newLimiter(t, tokenbucket.Cached(s.choose, time.Minute, 100))
		capacity(t, l, "a", 10)
		s.set(nil, fmt.Errorf("%w: no database", store.ErrUnavailable))
		time.Sleep(time.Hour)
		s.called(t, 1)
		for range 5 {
			capacity(t, l, "a", 10)
		}
		s.called(t, 1)
		for range 2 {
			if _, err := l.Allow(t.Context(), "b"); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("a key without limits: %v", err)
			}
		}
		s.called(t, 2)
		s.set(tokenbucket.PerHour(20), nil)
		capacity(t, l, "a", 10)
		time.Sleep(time.Second)
		capacity(t, l, "a", 20)

		boom := errors.New("no such customer")
		s.set(nil, boom)
		time.Sleep(time.Minute)
		for range 2 {
			if _, err := l.Allow(t.Context(), "a"); !errors.Is(err, boom) {
				t.Errorf("another error: %v", err)
			}
		}
		s.set(nil, fmt.Errorf("%w: no database", store.ErrUnavailable))
		if _, err := l.Allow(t.Context(), "a"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("the limits from before the error are kept: %v", err)
		}
		s.set(tokenbucket.PerHour(0), nil)
		if _, err := l.Allow(t.Context(), "a"); !errors.Is(err, tokenbucket.ErrInvalidLimit) {
			t.Errorf("a plan that makes no sense: %v", err)
		}
	})
}

func TestManyCallsAskForAPlanOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{plan: tokenbucket.PerHour(1000), takes: time.Second}
		l, _ := newLimiter(t, tokenbucket.Cached(s.choose, time.Minute, 100))
		all := func() {
			var calls sync.WaitGroup
			for range 100 {
				calls.Go(func() { capacity(t, l, "a", 1000) })
			}
			calls.Wait()
		}
		began := time.Now()
		all()
		s.called(t, 1)
		if took := time.Since(began); took != time.Second {
			t.Errorf("they took %v", took)
		}
		time.Sleep(time.Minute)
		go capacity(t, l, "a", 1000)
		synctest.Wait()
		began = time.Now()
		all() // with what has expired
		if took := time.Since(began); took != 0 {
			t.Errorf("with limits that have expired they took %v", took)
		}
		time.Sleep(s.takes)
		synctest.Wait()
		s.called(t, 1)

		s.set(nil, errors.New("boom"))
		var failed sync.WaitGroup
		for range 100 {
			failed.Go(func() {
				if _, err := l.Allow(t.Context(), "new"); err == nil {
					t.Error("no error")
				}
			})
		}
		failed.Wait()
		s.called(t, 1)
	})
}

// Who asks may leave: another one asks then.
func TestACallThatAsksForAPlanIsCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{plan: tokenbucket.PerHour(10), takes: time.Second}
		l, _ := newLimiter(t, tokenbucket.Cached(s.choose, time.Minute, 100))
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			if _, err := l.Allow(ctx, "a"); !errors.Is(err, context.Canceled) {
				t.Errorf("the one that left: %v", err)
			}
		}()
		synctest.Wait()
		done := make(chan struct{})
		go func() {
			defer close(done)
			capacity(t, l, "a", 10)
		}()
		synctest.Wait()
		brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := l.Allow(brief, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one that waits and whose context ends: %v", err)
		}
		leave()
		<-done
		s.called(t, 2)
	})
}

func TestAPlanFuncThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		panics := true
		l, _ := newLimiter(t, tokenbucket.Cached(func(context.Context, string) (tokenbucket.Plan, error) {
			<-time.After(time.Second)
			if panics {
				panic("boom")
			}
			return tokenbucket.PerHour(10), nil
		}, time.Minute, 100))
		go func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic is lost")
				}
			}()
			_, _ = l.Allow(t.Context(), "a")
		}()
		synctest.Wait()
		if _, err := l.Allow(t.Context(), "a"); err == nil {
			t.Error("no error for one that waits")
		}
		panics = false
		capacity(t, l, "a", 10)
	})
}

func TestTheCacheOfPlansIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{plan: tokenbucket.PerHour(10), takes: time.Second}
		l, _ := newLimiter(t, tokenbucket.Cached(s.choose, time.Hour, 10))
		for range 2 { // the second time, all but ten are asked for again
			var calls sync.WaitGroup
			for i := range 1000 {
				calls.Go(func() { capacity(t, l, strconv.Itoa(i), 10) })
			}
			calls.Wait()
		}
		s.called(t, 1990)
	})
}

// Once the source has said that there is no such customer, the earlier limits no longer apply.
func TestAnErrorEndsCachedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{plan: tokenbucket.PerHour(1000), takes: time.Millisecond}
		l, _ := newLimiter(t, tokenbucket.Cached(s.choose, time.Minute, 100))
		capacity(t, l, "a", 1000)
		s.set(nil, errors.New("no such customer"))
		time.Sleep(time.Hour)
		if _, err := l.Allow(t.Context(), "a"); err == nil {
			t.Fatal("no error")
		}
		var calls sync.WaitGroup
		for range 20 {
			calls.Go(func() {
				for range 20 {
					if _, err := l.Allow(t.Context(), "a"); err == nil {
						t.Error("decided by the limits from before")
					}
				}
			})
		}
		calls.Wait()
	})
}

func TestACachedPlanAllocatesNoMoreThanAFixedOne(t *testing.T) {
	s := &source{plan: tokenbucket.PerHour(1e9)}
	count := func(plan tokenbucket.Plan) float64 {
		l, _ := newLimiter(t, plan)
		return testing.AllocsPerRun(1000, func() { _, _ = l.Allow(t.Context(), "k") })
	}
	fixed, cached := count(tokenbucket.PerHour(1e9)), count(tokenbucket.Cached(s.choose, time.Hour, 10))
	if cached > fixed {
		t.Errorf("%v allocations, and %v with a fixed plan", cached, fixed)
	}
}
