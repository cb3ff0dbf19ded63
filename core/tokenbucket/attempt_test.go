package tokenbucket_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

var held = tokenbucket.Escalate(time.Hour, 2, 4*time.Hour)

// attempt reserves one token for an attempt.
func attempt(t *testing.T, l *tokenbucket.Limiter) *tokenbucket.Reservation {
	t.Helper()
	return must(l.ReserveN(t.Context(), "k", 1, tokenbucket.AsAttempt(&held)))
}

// attempts are open ones.
func attempts(t *testing.T, l *tokenbucket.Limiter, n int) []*tokenbucket.Reservation {
	t.Helper()
	open := make([]*tokenbucket.Reservation, n)
	for i := range open {
		if open[i] = attempt(t, l); !open[i].Allowed {
			t.Fatalf("attempt %d is denied: %+v", i+1, open[i].Decision)
		}
	}
	return open
}

// pending returns an attempt that is denied because of open ones.
func pending(t *testing.T, l *tokenbucket.Limiter) *tokenbucket.Reservation {
	t.Helper()
	r := attempt(t, l)
	if r.Allowed || !r.Pending {
		t.Fatalf("%+v is not pending", r.Decision)
	}
	if d, err := r.HoldLater(t.Context()); d != 0 || err != nil {
		t.Fatalf("held for %v: %v", d, err)
	}
	return r
}

func wantHeld(t *testing.T, l *tokenbucket.Limiter, want time.Duration) {
	t.Helper()
	if d := must(l.Peek(t.Context(), "k")); d.Held != want {
		t.Errorf("held for %v, want %v", d.Held, want)
	}
}

// plans have room for three attempts.
var plans = map[string]tokenbucket.Plan{
	"rate":     tokenbucket.PerHour(3),
	"fast":     tokenbucket.PerSecond(3),
	"calendar": tokenbucket.Monthly(3),
	"several":  tokenbucket.Limits{tokenbucket.PerMinute(7), tokenbucket.PerHour(3)},
}

func TestAttempts(t *testing.T) {
	for name, plan := range plans {
		t.Run(name, func(t *testing.T) {
			inBubble(t, plan, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
				for range 3 { // right ones leave nothing behind
					open := attempts(t, l, 3)
					if s := pending(t, l).Limits(); s[len(s)-1].Reserved != 3 {
						t.Errorf("%+v", s)
					}
					var all sync.WaitGroup
					for _, r := range open {
						all.Go(func() {
							if err := r.Cancel(t.Context()); err != nil {
								t.Error(err)
							}
						})
					}
					all.Wait()
				}
				if n := st.Calls(storetest.HoldTokens); n != 0 {
					t.Fatalf("held %d times", n)
				}
				for _, hold := range []time.Duration{time.Hour, 2 * time.Hour} { // wrong ones, again and again
					open := attempts(t, l, 3)
					pending(t, l)
					pending(t, l)
					for _, r := range open {
						wantHeld(t, l, 0)
						if err := r.Settle(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					wantHeld(t, l, hold)
					time.Sleep(hold)
					if name == "calendar" {
						break // its tokens are back next month
					}
					time.Sleep(time.Hour)
				}
			})
		})
	}
}

// A right one forgives the refused ones, and an offence that has led to a hold is not
// counted again after it.
func TestARightAttemptForgives(t *testing.T) {
	inBubble(t, tokenbucket.PerHour(3), func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		open := attempts(t, l, 3)
		pending(t, l)
		if err := errors.Join(open[0].Cancel(t.Context()), open[1].Settle(t.Context()), open[2].Settle(t.Context())); err != nil {
			t.Fatal(err)
		}
		wantHeld(t, l, 0)
		last := attempts(t, l, 1)
		pending(t, l)
		if err := last[0].Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantHeld(t, l, time.Hour)
		time.Sleep(time.Hour)
		if err := attempts(t, l, 1)[0].Settle(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantHeld(t, l, 0)
	})
}

// A key at which attempts fail all the time is held, although some are always open.
func TestOpenAttemptsDoNotHideAFlood(t *testing.T) {
	for name, plan := range map[string]tokenbucket.Plan{
		"slow handlers": tokenbucket.PerSecond(1).Burst(5), "one that stays open": tokenbucket.PerMinute(1).Burst(5),
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, plan, func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
				stalled := attempts(t, l, 1)
				var all sync.WaitGroup
				for range 600 {
					if r := attempt(t, l); r.Allowed {
						all.Go(func() {
							time.Sleep(2 * time.Second)
							if err := r.Settle(t.Context()); err != nil {
								t.Error(err)
							}
						})
					} else if r.Pending {
						must(r.HoldLater(t.Context()))
					} else if r.Held == 0 {
						must(l.HoldAgain(t.Context(), "k", held))
					}
					time.Sleep(100 * time.Millisecond)
				}
				all.Wait()
				if n := st.Calls(storetest.HoldTokens); n != 1 {
					t.Errorf("held %d times", n)
				}
				if err := stalled[0].Cancel(t.Context()); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// Attempts that end between a denial and HoldLater have their say.
func TestHoldLaterIsLate(t *testing.T) {
	inBubble(t, tokenbucket.PerHour(2), func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		for _, end := range []func(*tokenbucket.Reservation) error{
			func(r *tokenbucket.Reservation) error { return r.Cancel(t.Context()) },
			func(r *tokenbucket.Reservation) error { return r.Settle(t.Context()) },
		} {
			open := attempts(t, l, 2)
			refused := attempt(t, l)
			if err := errors.Join(end(open[0]), end(open[1])); err != nil {
				t.Fatal(err)
			}
			d := must(refused.HoldLater(t.Context()))
			wantHeld(t, l, d)
		}
		wantHeld(t, l, time.Hour)
	})
}

// An attempt that is never settled, and a hold that the store refuses, are as without HoldLater.
func TestHoldLaterDuringAnOutage(t *testing.T) {
	inBubble(t, tokenbucket.PerHour(1), func(t *testing.T, l *tokenbucket.Limiter, st *storetest.Faulty) {
		open := attempts(t, l, 1)
		st.Break(storetest.SettleTokens, storetest.Down)
		refused := attempt(t, l)
		if d, err := refused.HoldLater(t.Context()); d != 0 || !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("held for %v: %v", d, err)
		}
		if err := open[0].Settle(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Error(err)
		}
		st.Mend(storetest.Any)
		pending(t, l)
		time.Sleep(30 * time.Second)
		if r := attempt(t, l); r.Allowed || r.Pending || r.RetryAfter != time.Hour-30*time.Second {
			t.Errorf("%+v", r.Decision)
		}
		if d := must(l.HoldAgain(t.Context(), "k", held)); d != time.Hour {
			t.Errorf("held for %v", d)
		}
	})
}

// What an attempt has used is charged, and what was open is forgotten by a reset.
func TestAttemptsWithCosts(t *testing.T) {
	inBubble(t, llm, func(t *testing.T, l *tokenbucket.Limiter, _ *storetest.Faulty) {
		reserve := func() *tokenbucket.Reservation {
			return must(l.Reserve(t.Context(), "team", tokenbucket.Cost{"requests": 1, "tokens": 600}, tokenbucket.AsAttempt(&held)))
		}
		first, second := reserve(), reserve()
		if !first.Allowed || !second.Pending {
			t.Fatalf("%+v, %+v", first.Decision, second.Decision)
		}
		if s := first.Limits(); s[1].Reserved != 600 || s[1].Remaining != 400 || s[1].Reset != 0 {
			t.Errorf("%+v", s[1])
		}
		if err := errors.Join(first.Use("tokens", 100), first.Cancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		wantLeft(t, l, "team", 60, 900, 4900)
		reserve()
		if err := l.Reset(t.Context(), "team"); err != nil {
			t.Fatal(err)
		}
		if r := reserve(); !r.Allowed || r.Limits()[1].Reserved != 600 {
			t.Errorf("%+v", r.Limits())
		}
	})
}
