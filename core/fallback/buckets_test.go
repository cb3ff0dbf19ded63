package fallback_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fallback"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// With primary up or down, the store keeps the contract.
func TestBucketsContract(t *testing.T) {
	for name, down := range map[string]bool{"up": false, "down": true} {
		t.Run(name, func(t *testing.T) {
			storetest.Buckets(t, func(t *testing.T, test func(*testing.T, storetest.Harness[store.Buckets])) {
				synctest.Test(t, func(t *testing.T) {
					primary, standIn := storetest.NewFaulty(memstore.New()), memstore.New()
					defer func() { _, _ = primary.Close(), standIn.Close() }()
					if down {
						primary.Break(storetest.TakeTokens, storetest.Down)
					}
					buckets := must(fallback.Buckets(primary, standIn, 1))
					test(t, storetest.Harness[store.Buckets]{Store: buckets, Advance: time.Sleep})
				})
			})
		})
	}
}

// limited runs a test with a limiter on a primary and a stand-in, with faked time.
func limited(t *testing.T, plan tokenbucket.Plan, share float64, test func(t *testing.T, primary, standIn *storetest.Faulty, l *tokenbucket.Limiter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		primary, standIn := storetest.NewFaulty(memstore.New()), storetest.NewFaulty(memstore.New())
		defer func() { _, _ = primary.Close(), standIn.Close() }()
		test(t, primary, standIn, newLimiter(t, primary, standIn, plan, share))
	})
}

func newLimiter(t *testing.T, primary, standIn store.Buckets, plan tokenbucket.Plan, share float64) *tokenbucket.Limiter {
	t.Helper()
	return must(tokenbucket.New(must(fallback.Buckets(primary, standIn, share)), "api", plan))
}

func allow(t *testing.T, l *tokenbucket.Limiter, n int64) tokenbucket.Decision {
	t.Helper()
	d, err := l.AllowN(t.Context(), "k", n)
	if err != nil {
		t.Fatalf("AllowN: %v", err)
	}
	return d
}

func TestShareOfABurst(t *testing.T) {
	limited(t, tokenbucket.PerSecond(10).Burst(20), 0.25, func(t *testing.T, primary, _ *storetest.Faulty, l *tokenbucket.Limiter) {
		if d := allow(t, l, 1); !d.Allowed || d.Limits()[0].Remaining != 19 {
			t.Errorf("before the outage: %+v", d)
		}
		primary.Break(storetest.TakeTokens, storetest.Down)
		for left := int64(4); left >= 0; left-- { // 5 of 20
			if d := allow(t, l, 1); !d.Allowed || d.Limits()[0].Remaining != left {
				t.Errorf("%d tokens should be left: %+v", left, d)
			}
		}
		d := allow(t, l, 1)
		if d.Allowed || d.RetryAfter != 400*time.Millisecond { // at a quarter of 10 a second
			t.Errorf("a sixth of five: %+v", d)
		}
		time.Sleep(d.RetryAfter - time.Microsecond)
		if d := allow(t, l, 1); d.Allowed {
			t.Errorf("too early: %+v", d)
		}
		time.Sleep(time.Microsecond)
		if d := allow(t, l, 1); !d.Allowed || d.Limits()[0].Remaining != 0 {
			t.Errorf("after that time: %+v", d)
		}
		primary.Mend(storetest.Any)
		if d := allow(t, l, 1); !d.Allowed || d.Limits()[0].Remaining != 19 {
			t.Errorf("after the outage: %+v", d)
		}
	})
}

// Four processes whose shares add up to one admit one burst and the rate, and not much less.
func TestSharesAddUp(t *testing.T) {
	for name, plan := range map[string]tokenbucket.Plan{
		"one limit": tokenbucket.PerSecond(100).Burst(40),
		"several":   tokenbucket.Limits{tokenbucket.PerSecond(100).Burst(40), tokenbucket.PerMinute(100_000).Named("much")},
	} {
		t.Run(name, func(t *testing.T) {
			limited(t, plan, 1, func(t *testing.T, primary, _ *storetest.Faulty, _ *tokenbucket.Limiter) {
				primary.Break(storetest.TakeTokens, storetest.Down)
				var processes []*tokenbucket.Limiter
				for range 4 {
					standIn := memstore.New()
					defer standIn.Close()
					processes = append(processes, newLimiter(t, primary, standIn, plan, 0.25))
				}
				admitted := 0
				const seconds = 10
				for range seconds * 1000 {
					for _, l := range processes {
						if allow(t, l, 1).Allowed {
							admitted++
						}
					}
					time.Sleep(time.Millisecond)
				}
				if most := 40 + 100*seconds; admitted > most || admitted < most-8 {
					t.Errorf("%d were admitted, want %d", admitted, most)
				}
			})
		})
	}
}

// A share of less than one token admits one request, and the next at the rate of the share.
func TestSmallShare(t *testing.T) {
	limited(t, tokenbucket.PerSecond(1).Burst(1), 0.1, func(t *testing.T, primary, _ *storetest.Faulty, l *tokenbucket.Limiter) {
		primary.Break(storetest.TakeTokens, storetest.Down)
		if d := allow(t, l, 1); !d.Allowed {
			t.Errorf("the first: %+v", d)
		}
		if d := allow(t, l, 1); d.Allowed || d.RetryAfter != 10*time.Second {
			t.Errorf("the second: %+v", d)
		}
	})
}

// Peek charges neither store, and Reset fills both.
func TestPeekAndReset(t *testing.T) {
	limited(t, tokenbucket.PerHour(4), 0.5, func(t *testing.T, primary, _ *storetest.Faulty, l *tokenbucket.Limiter) {
		primary.Break(storetest.TakeTokens, storetest.Down)
		for range 3 {
			if d, err := l.Peek(t.Context(), "k"); err != nil || !d.Allowed {
				t.Errorf("Peek: %+v, %v", d, err)
			}
		}
		allow(t, l, 1)
		allow(t, l, 1)
		if d, err := l.Peek(t.Context(), "k"); err != nil || d.Allowed {
			t.Errorf("Peek of an empty bucket: %+v, %v", d, err)
		}
		if err := l.Reset(t.Context(), "k"); err != nil {
			t.Errorf("Reset: %v", err)
		}
		if d := allow(t, l, 1); !d.Allowed {
			t.Errorf("after Reset: %+v", d)
		}
	})
}

func TestNoFallbackOfBuckets(t *testing.T) {
	limited(t, tokenbucket.PerHour(4), 1, func(t *testing.T, primary, standIn *storetest.Faulty, l *tokenbucket.Limiter) {
		for fault, want := range map[storetest.Fault]error{
			storetest.Full: store.ErrFull, storetest.Misconfigured: store.ErrMisconfigured,
		} {
			primary.Break(storetest.TakeTokens, fault)
			if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
		}
		primary.Break(storetest.TakeTokens, storetest.Hung)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Allow(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an ended context: %v", err)
		}
		if n := standIn.Calls(storetest.Any); n != 0 {
			t.Errorf("%d calls of the stand-in", n)
		}
		primary.Break(storetest.TakeTokens, storetest.Down)
		standIn.Break(storetest.TakeTokens, storetest.Full)
		if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) || !errors.Is(err, store.ErrFull) {
			t.Errorf("both failed: %v", err)
		}
	})
}

// The longest plan and the smallest share do not overflow.
func TestLongestPlanInAnOutage(t *testing.T) {
	const day = 24 * time.Hour
	limited(t, tokenbucket.Per(1, 365*day).Burst(10), 0.001, func(t *testing.T, primary, _ *storetest.Faulty, l *tokenbucket.Limiter) {
		primary.Break(storetest.TakeTokens, storetest.Down)
		if d := allow(t, l, 10); !d.Allowed {
			t.Errorf("the first: %+v", d)
		}
		if d := allow(t, l, 1); d.Allowed || d.RetryAfter <= 0 {
			t.Errorf("the second: %+v", d)
		}
	})
}
