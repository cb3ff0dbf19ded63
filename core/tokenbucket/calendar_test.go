package tokenbucket_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// sleepUntil advances a bubble's clock.
func sleepUntil(t *testing.T, text string) {
	t.Helper()
	time.Sleep(time.Until(must(time.Parse(time.RFC3339, text))))
}

// A quota is whole until its period ends, and then anew: at the instant that decisions have said.
func TestQuotasOfCalendars(t *testing.T) {
	location := func(name string) *time.Location {
		in, err := time.LoadLocation(name)
		if err != nil {
			t.Skip(err)
		}
		return in
	}
	for name, c := range map[string]struct {
		limit tokenbucket.Limit
		now   string
		ends  []string
	}{
		"days":          {tokenbucket.Daily(10), "2026-11-23T22:59:59Z", []string{"2026-11-24T00:00:00Z", "2026-11-25T00:00:00Z"}},
		"weeks":         {tokenbucket.Weekly(10), "2026-11-22T23:00:00Z", []string{"2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"}},
		"months":        {tokenbucket.Monthly(10), "2027-01-31T12:00:00Z", []string{"2027-02-01T00:00:00Z", "2027-03-01T00:00:00Z"}},
		"from the 31st": {tokenbucket.Monthly(10).From(31), "2027-01-31T00:00:00Z", []string{"2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z", "2027-04-30T00:00:00Z"}},
		"in a leap year": {
			tokenbucket.Monthly(10).From(30), "2028-01-30T00:00:00Z", []string{"2028-02-29T00:00:00Z", "2028-03-30T00:00:00Z"},
		},
		"days with daylight saving": {
			tokenbucket.Daily(10).In(location("Europe/Berlin")), "2026-03-28T12:00:00Z",
			[]string{"2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"},
		},
		"days without it": {
			tokenbucket.Daily(10).In(location("Europe/Berlin")), "2026-10-24T12:00:00Z",
			[]string{"2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z", "2026-10-26T23:00:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := newLimiter(t, c.limit)
				sleepUntil(t, c.now)
				for _, end := range c.ends {
					left := time.Until(must(time.Parse(time.RFC3339, end)))
					if d := must(l.Peek(t.Context(), "k")); !d.Allowed || d.Limits()[0].Remaining != 10 || d.Limits()[0].Reset != 0 {
						t.Fatalf("before %s: %+v", end, d.Limits())
					}
					if d := must(l.AllowN(t.Context(), "k", 7)); !d.Allowed || d.Limits()[0].Remaining != 3 || d.Limits()[0].Reset != left {
						t.Fatalf("before %s: %+v", end, d.Limits())
					}
					time.Sleep(left / 2)
					if d := must(l.AllowN(t.Context(), "k", 4)); d.Allowed || d.RetryAfter != left-left/2 {
						t.Fatalf("%v before %s: %+v", left/2, end, d)
					}
					time.Sleep(left - left/2 - time.Nanosecond)
					if d := must(l.AllowN(t.Context(), "k", 4)); d.Allowed || d.RetryAfter != time.Microsecond {
						t.Fatalf("just before %s: %+v", end, d)
					}
					time.Sleep(time.Nanosecond)
				}
			})
		})
	}
}

// A reservation is settled within its period, and not in a later one, whose tokens are others.
func TestSettlementsOfCalendars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLimiter(t, tokenbucket.Limits{tokenbucket.Daily(10).Named("quota").Overdraft(3), tokenbucket.PerHour(1000).Named("rate")})
		remaining := func(want int64) {
			t.Helper()
			if got := must(l.Peek(t.Context(), "k")).Limits()[0].Remaining; got != want {
				t.Errorf("%d tokens remain, want %d", got, want)
			}
		}
		reserve := func(n int64) *tokenbucket.Reservation {
			return must(l.Reserve(t.Context(), "k", tokenbucket.Cost{"quota": n, "rate": n}))
		}
		sleepUntil(t, "2026-11-23T23:00:00Z")
		in, less, late, over := reserve(2), reserve(3), reserve(4), reserve(1)
		if err := errors.Join(in.Use("quota", 1), in.Settle(t.Context()), less.Cancel(t.Context())); err != nil {
			t.Error(err)
		}
		remaining(4)
		if err := errors.Join(over.Use("quota", 100)); err != nil || !errors.Is(over.Settle(t.Context()), tokenbucket.ErrOverdraft) {
			t.Errorf("more than the overdraft: %v", err)
		}
		remaining(0)
		time.Sleep(time.Hour)
		remaining(10)
		if d := must(l.AllowN(t.Context(), "k", 5)); !d.Allowed {
			t.Errorf("in the next period: %+v", d)
		}
		if err := errors.Join(late.Use("quota", 1), late.Use("rate", 0), late.Settle(t.Context())); err != nil {
			t.Error(err)
		}
		remaining(5)
		late = reserve(5)
		time.Sleep(24 * time.Hour)
		if err := errors.Join(late.Use("quota", 9), late.Settle(t.Context())); err != nil {
			t.Error(err)
		}
		remaining(10)
	})
}

// A change of the first day of the month takes effect after the present period.
func TestAnotherFirstDay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLimiter(t, tokenbucket.Monthly(10))
		sleepUntil(t, "2026-11-23T12:00:00Z")
		must(l.AllowN(t.Context(), "k", 10))
		if err := l.SetPlan(tokenbucket.Monthly(10).From(24)); err != nil {
			t.Fatal(err)
		}
		sleepUntil(t, "2026-11-24T12:00:00Z")
		if d := must(l.Allow(t.Context(), "k")); d.Allowed || d.RetryAfter != 156*time.Hour {
			t.Errorf("after the 24th: %+v", d)
		}
		if d := must(l.Allow(t.Context(), "another")); !d.Allowed || d.Limits()[0].Reset != 29*24*time.Hour+12*time.Hour {
			t.Errorf("another key: %+v", d.Limits())
		}
		sleepUntil(t, "2026-12-01T00:00:00Z")
		if d := must(l.AllowN(t.Context(), "k", 10)); !d.Allowed || d.Limits()[0].Reset != 23*24*time.Hour {
			t.Errorf("in December: %+v", d.Limits())
		}
		if err := l.SetPlan(tokenbucket.Monthly(25).From(24)); err != nil {
			t.Fatal(err)
		}
		if d := must(l.Peek(t.Context(), "k")); !d.Allowed || d.Limits()[0].Remaining != 15 {
			t.Errorf("of 10 used of 25: %+v", d.Limits())
		}
	})
}

// Waiters, holds, resets, leases and what is left are as of any limit.
func TestCallsOfCalendars(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, st := newLimiter(t, tokenbucket.Limits{tokenbucket.Daily(10), tokenbucket.PerMinute(8).Named("rate")})
		sleepUntil(t, "2026-11-23T12:00:00Z")
		d := must(l.AllowAtMost(t.Context(), "k", 100))
		if s := d.Limits()[0]; d.Taken != 8 || s.Remaining != 2 || s.Window != 24*time.Hour || s.Reset != 12*time.Hour {
			t.Errorf("as many as there are: %+v", d)
		}
		time.Sleep(time.Minute)
		if d := must(l.AllowAtMost(t.Context(), "k", 100)); d.Taken != 2 || d.Limits()[1].Remaining != 6 {
			t.Errorf("as many as there are: %+v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := l.Wait(ctx, "k"); err == nil {
			t.Error("has waited for a token of tomorrow")
		}
		if err := l.Wait(t.Context(), "k"); err != nil || time.Now().Format(time.DateTime) != "2026-11-24 00:00:00" {
			t.Errorf("waited until %v, %v", time.Now(), err)
		}
		if err := l.Hold(t.Context(), "k", 25*time.Hour); err != nil {
			t.Error(err)
		}
		if d := must(l.Allow(t.Context(), "k")); d.Allowed || d.RetryAfter != 25*time.Hour || d.Limits()[0].Remaining != 9 {
			t.Errorf("held: %+v", d)
		}
		if err := l.Reset(t.Context(), "k"); err != nil {
			t.Error(err)
		}
		if d := must(l.AllowN(t.Context(), "k", 8)); !d.Allowed {
			t.Errorf("after a reset: %+v", d)
		}
		both := must(tokenbucket.All(t.Context(), l.Ask("k", 2), l.Ask("other", 1)))
		if both.Allowed || both.Limits()[2].Remaining != 10 {
			t.Errorf("8 a minute were used: %+v", both.Limits())
		}
		time.Sleep(time.Minute)
		both = must(tokenbucket.All(t.Context(), l.Ask("k", 2), l.Ask("other", 1)))
		if !both.Allowed || both.Limits()[0].Remaining != 0 || both.Limits()[2].Reset != 24*time.Hour-time.Minute {
			t.Errorf("both: %+v", both.Limits())
		}

		leased := must(tokenbucket.New(st, "leased", tokenbucket.Daily(100), tokenbucket.WithLease(16)))
		admitted := 0
		for range 1000 {
			if must(leased.Allow(t.Context(), "k")).Allowed {
				admitted++
			}
		}
		if admitted != 100 {
			t.Errorf("%d of 100 with leases", admitted)
		}
	})
}
