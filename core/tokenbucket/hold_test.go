package tokenbucket_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func TestHold(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		if err := l.Hold(t.Context(), "team", 2*time.Second); err != nil {
			t.Fatal(err)
		}
		if err := l.Hold(t.Context(), "team", time.Second); err != nil { // a longer one stays
			t.Fatal(err)
		}
		for name, d := range map[string]tokenbucket.Decision{
			"allow": must(l.Allow(t.Context(), "team")),
			"peek":  must(l.Peek(t.Context(), "team")),
			"most":  must(l.AllowAtMost(t.Context(), "team", 5)),
		} {
			if d.Allowed || d.RetryAfter != 2*time.Second || d.Held != 2*time.Second || d.Taken != 0 {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if d := must(l.AllowN(t.Context(), "team", 0)); !d.Allowed {
			t.Error("nothing is denied")
		}
		if d := must(l.Allow(t.Context(), "other")); !d.Allowed {
			t.Error("another key is held")
		}
		began := time.Now()
		if err := l.Wait(t.Context(), "team"); err != nil || time.Since(began) != 2*time.Second {
			t.Errorf("waited for %v: %v", time.Since(began), err)
		}
		wantLeft(t, l, "team", 59, 999, 4999)
	})
}

func TestResetEndsAHold(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		if err := errors.Join(l.Hold(t.Context(), "team", time.Hour), l.Reset(t.Context(), "team")); err != nil {
			t.Fatal(err)
		}
		if d := must(l.Allow(t.Context(), "team")); !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// A waiter learns that another process has ended the hold.
func TestResetEndsAWaitForAHold(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		other := must(tokenbucket.New(st, l.Name(), llm))
		if err := l.Hold(t.Context(), "team", 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Hour, func() { _ = other.Reset(t.Context(), "team") })
		began := time.Now()
		if err := l.Wait(t.Context(), "team"); err != nil || time.Since(began) > time.Hour+10*time.Second {
			t.Errorf("waited for %v: %v", time.Since(began), err)
		}
	})
}

func TestHoldRefuses(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		for _, d := range []time.Duration{-1, 0, time.Microsecond, tokenbucket.MaxHold + 1, 365 * 24 * time.Hour} {
			if err := l.Hold(t.Context(), "team", d); !errors.Is(err, tokenbucket.ErrInvalidHold) {
				t.Errorf("%v: %v", d, err)
			}
		}
		if err := l.Hold(t.Context(), "", time.Second); !errors.Is(err, tokenbucket.ErrInvalidKey) {
			t.Error(err)
		}
		if err := l.SetPlan(tokenbucket.Unlimited()); err != nil {
			t.Fatal(err)
		}
		if err := l.Hold(t.Context(), "team", time.Second); !errors.Is(err, tokenbucket.ErrNoLimits) {
			t.Error(err)
		}
		if _, err := l.HoldAgain(t.Context(), "team", tokenbucket.Escalate(time.Second, 2, time.Hour)); !errors.Is(err, tokenbucket.ErrNoLimits) {
			t.Error(err)
		}
		if n := st.Calls(storetest.Any); n != 0 {
			t.Errorf("%d calls", n)
		}
	})
}

// Repeat offenders wait longer each time, up to the longest hold, and an offence is forgotten a
// day.
func TestHoldAgain(t *testing.T) {
	inBubble(t, tokenbucket.PerSecond(1), func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		e := tokenbucket.Escalate(time.Minute, 2, 10*time.Minute)
		for i, minutes := range []int{1, 2, 4, 8, 10, 10, 10} {
			want := time.Duration(minutes) * time.Minute
			var (
				wg   sync.WaitGroup
				once atomic.Int64
			)
			for range 50 { // denied together
				wg.Go(func() {
					if d := must(l.HoldAgain(t.Context(), "k", e)); d > 0 {
						once.Add(1)
						if d != want {
							t.Errorf("offence %d: held for %v", i+1, d)
						}
					}
				})
			}
			wg.Wait()
			if once.Load() != 1 {
				t.Errorf("offence %d: %d holds", i+1, once.Load())
			}
			if d := must(l.Allow(t.Context(), "k")); d.Allowed || d.Held != want {
				t.Fatalf("offence %d: %+v", i+1, d)
			}
			time.Sleep(want)
			if d := must(l.Allow(t.Context(), "k")); !d.Allowed {
				t.Fatalf("denied after hold %d: %+v", i+1, d)
			}
		}
		time.Sleep(48 * time.Hour)
		if d := must(l.HoldAgain(t.Context(), "k", e)); d != 8*time.Minute { // of five, three are left
			t.Errorf("two days later: held for %v", d)
		}
		if err := l.Reset(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if d := must(l.HoldAgain(t.Context(), "k", e)); d != time.Minute {
			t.Errorf("after a reset: held for %v", d)
		}
	})
}

// With a factor of 1 each hold is as long as the first, and what a key does while it is held is no
// offence.
func TestHoldAgainAsLong(t *testing.T) {
	inBubble(t, tokenbucket.PerSecond(1), func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		e := tokenbucket.Escalate(time.Minute, 1, time.Hour)
		for i := range 4 {
			if d := must(l.HoldAgain(t.Context(), "k", e)); d != time.Minute {
				t.Errorf("offence %d: held for %v", i+1, d)
			}
			for range 59 {
				time.Sleep(time.Second)
				if d := must(l.HoldAgain(t.Context(), "k", e)); d != 0 {
					t.Errorf("held for %v while it is held", d)
				}
			}
			time.Sleep(time.Second)
		}
	})
}

// If the store does not hold a key, there was no offence.
func TestHoldAgainDuringAnOutage(t *testing.T) {
	inBubble(t, tokenbucket.PerSecond(1), func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		e := tokenbucket.Escalate(time.Minute, 2, time.Hour)
		st.Break(storetest.HoldTokens, storetest.Down)
		if d, err := l.HoldAgain(t.Context(), "k", e); d != 0 || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("held for %v: %v", d, err)
		}
		st.Mend(storetest.Any)
		if d := must(l.HoldAgain(t.Context(), "k", e)); d != time.Minute {
			t.Errorf("held for %v", d)
		}
		if d, err := l.HoldAgain(t.Context(), "other", tokenbucket.Escalation{}); d != 0 || !errors.Is(err, tokenbucket.ErrInvalidHold) {
			t.Errorf("held for %v: %v", d, err)
		}
	})
}

// A stand-in knows of no earlier offence.
func TestHoldAgainInAStandIn(t *testing.T) {
	primary := storetest.NewFaulty(memstore.New())
	primary.Break(storetest.TakeTokens, storetest.Down)
	st := must(fallback.Buckets(primary, memstore.New(), 0.1))
	l := must(tokenbucket.New(st, "api", tokenbucket.PerSecond(10)))
	if d := must(l.HoldAgain(t.Context(), "k", tokenbucket.Escalate(time.Second, 2, time.Hour))); d != time.Second {
		t.Errorf("held for %v", d)
	}
}

// If the primary store fails to hold, the offence is taken back where it was counted.
func TestHoldAgainThatFailsInAStandIn(t *testing.T) {
	primary := storetest.NewFaulty(memstore.New())
	standIn := storetest.NewFaulty(memstore.New())
	primary.Break(storetest.TakeTokens, storetest.Down)
	primary.Break(storetest.HoldTokens, storetest.Down)
	st := must(fallback.Buckets(primary, standIn, 0.1))
	l := must(tokenbucket.New(st, "api", tokenbucket.PerSecond(10)))
	if d, err := l.HoldAgain(t.Context(), "k", tokenbucket.Escalate(time.Second, 2, time.Hour)); err == nil {
		t.Errorf("held for %v although the store has failed", d)
	}
	if wrong, right := primary.Calls(storetest.SettleTokens), standIn.Calls(storetest.SettleTokens); wrong != 0 || right != 1 {
		t.Errorf("%d settlements by the primary store, which has counted no offence, and %d by the stand-in", wrong, right)
	}
}

func TestEscalatePanics(t *testing.T) {
	nan := 0.0
	nan /= nan
	for _, c := range []struct {
		first   time.Duration
		factor  float64
		longest time.Duration
	}{
		{0, 2, time.Hour}, {time.Hour, 2, time.Minute}, {time.Second, 0.5, time.Hour}, {time.Second, nan, time.Hour},
		{time.Second, 2, tokenbucket.MaxHold + 1}, {time.Second, 1.0001, time.Hour}, {time.Second, 1001, time.Hour},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is an escalation", c)
				}
			}()
			tokenbucket.Escalate(c.first, c.factor, c.longest)
		}()
	}
}
