package tokenbucket_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A nanosecond for each token is less than one in 100,000, also at 3,000 a second.
func TestTokensOfAnHour(t *testing.T) {
	for _, rate := range []int64{100, 300, 3000} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := newLimiter(t, tokenbucket.PerSecond(rate).Burst(10*rate))
			takeAll := func() int64 {
				d := must(l.Peek(t.Context(), "k"))
				n := d.Limits()[0].Remaining
				if d, err := l.AllowN(t.Context(), "k", n); err != nil || !d.Allowed {
					t.Fatalf("%+v, %v", d, err)
				}
				return n
			}
			takeAll()
			taken := int64(0)
			for range 3600 {
				time.Sleep(time.Second)
				taken += takeAll()
			}
			if full := 3600 * rate; taken > full || taken < full-full/100_000-1 {
				t.Errorf("%d tokens of %d a second came back in an hour", taken, rate)
			}
		})
	}
}

// Resets do not show the nanoseconds that are added to intervals.
func TestResetOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLimiter(t, tokenbucket.PerSecond(300).Burst(600))
		d := must(l.AllowN(t.Context(), "k", 300))
		if s := d.Limits()[0]; s.Reset != time.Second || s.Window != 2*time.Second {
			t.Errorf("300 of 600 tokens at 300 a second were taken: %+v", s)
		}
	})
}

// A strict limit is kept in any period, also in one that begins with a full bucket.
func TestStrict(t *testing.T) {
	for _, limit := range []tokenbucket.Limit{
		tokenbucket.Strict(100, time.Minute), tokenbucket.Strict(100, time.Minute).Burst(99), tokenbucket.Strict(7, time.Second).Burst(2),
		tokenbucket.Strict(2, time.Second), tokenbucket.Strict(300, 7*time.Second).Burst(1),
	} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := newLimiter(t, limit)
			n, period := strictOf(t, limit)
			var admitted []time.Time
			for range 4 {
				for began := time.Now(); time.Since(began) < 2*period; { // as fast as it lets
					d := must(l.Allow(t.Context(), "k"))
					if d.Allowed {
						admitted = append(admitted, time.Now())
					} else {
						time.Sleep(d.RetryAfter)
					}
				}
				time.Sleep(3 * period) // the bucket is full again
			}
			most := 0
			for i, from := range admitted {
				j := i
				for j < len(admitted) && admitted[j].Sub(from) < period {
					j++
				}
				most = max(most, j-i)
			}
			if most > n || most < n-1 { // n if the period includes both of its ends
				t.Errorf("%v: %d in a period", limit, most)
			}
		})
	}
}

func strictOf(t *testing.T, l tokenbucket.Limit) (n int, period time.Duration) {
	count, rest, _ := strings.Cut(l.String(), "/")
	of, _, _ := strings.Cut(rest, " ")
	period, err := time.ParseDuration(of)
	if err != nil {
		t.Fatal(err)
	}
	return must(strconv.Atoi(count)), period
}

func TestUnlimited(t *testing.T) {
	l, st := newLimiter(t, tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
		if key == "gold" {
			return tokenbucket.Unlimited(), nil
		}
		return tokenbucket.PerHour(1), nil
	}))
	st.Break(storetest.Any, storetest.Down)
	for _, n := range []int64{0, 1, 1 << 62} {
		if d, err := l.AllowN(t.Context(), "gold", n); err != nil || !d.Allowed || d.RetryAfter != 0 || len(d.Limits()) != 0 {
			t.Errorf("%d tokens: %+v, %v", n, d, err)
		}
	}
	if d, err := l.Peek(t.Context(), "gold"); err != nil || !d.Allowed {
		t.Errorf("Peek: %+v, %v", d, err)
	}
	if err := errors.Join(l.WaitN(t.Context(), "gold", 7), l.Reset(t.Context(), "gold")); err != nil {
		t.Error(err)
	}
	if _, err := l.AllowN(t.Context(), "gold", -1); !errors.Is(err, tokenbucket.ErrInvalidCost) {
		t.Errorf("a negative cost: %v", err)
	}
	if _, err := l.Allow(t.Context(), "tin"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("with a limit: %v", err)
	}
	if err := l.SetPlan(tokenbucket.Unlimited()); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Allow(t.Context(), "tin"); err != nil || !d.Allowed {
		t.Errorf("switched off: %+v, %v", d, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(t.Context(), "gold"); !errors.Is(err, tokenbucket.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
