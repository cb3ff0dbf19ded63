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

// readOnly is a primary that takes no writes, and still replies to what only reads.
type readOnly struct {
	store.Buckets
	down *bool
}

func (r readOnly) TakeTokens(ctx context.Context, req store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	if *r.down && req.Charges[0].Cost != 0 {
		return store.TakeReply{}, store.Unavailable(store.ReadOnly, "a replica")
	}
	return r.Buckets.TakeTokens(ctx, req, more...)
}

// Peek returns what Allow would, also while primary only serves reads.
func TestPeekOnAReadOnlyPrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary, standIn, down := memstore.New(), memstore.New(), false
		defer func() { _, _ = primary.Close(), standIn.Close() }()
		l := newLimiter(t, readOnly{primary, &down}, standIn, tokenbucket.PerDay(10).Burst(10), 1)
		peek := func(want int64, from tokenbucket.Source) {
			t.Helper()
			d, err := l.Peek(t.Context(), "k")
			if err != nil || d.Limits()[0].Remaining != want || d.Source != from {
				t.Errorf("%+v, %v; want %d of the %v", d, err, want, from)
			}
		}
		allow(t, l, 2)
		peek(8, tokenbucket.FromStore)
		down = true
		allow(t, l, 7)
		peek(3, tokenbucket.FromStandIn)
		down = false
		allow(t, l, 1)
		peek(7, tokenbucket.FromStore)
	})
}

func TestShareOfABurst(t *testing.T) {
	limited(t, tokenbucket.PerSecond(10).Burst(20), 0.25, func(t *testing.T, primary, _ *storetest.Faulty, l *tokenbucket.Limiter) {
		if d := allow(t, l, 1); !d.Allowed || d.Limits()[0].Remaining != 19 {
			t.Errorf("before the outage: %+v", d)
		} else if d.Source != tokenbucket.FromStore {
			t.Errorf("before the outage: from the %v", d.Source)
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
		if d.Source != tokenbucket.FromStandIn || d.Source.String() != "stand-in" {
			t.Errorf("in the outage: from the %v", d.Source)
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

// A limit of a calendar has its share of the tokens until the period ends.
func TestShareOfAPeriod(t *testing.T) {
	limited(t, tokenbucket.Daily(10), 0.25, func(t *testing.T, primary, _ *storetest.Faulty, l *tokenbucket.Limiter) {
		time.Sleep(time.Hour) // a bubble begins at midnight
		allow(t, l, 9)
		primary.Break(storetest.TakeTokens, storetest.Down)
		for left := int64(1); left >= 0; left-- { // 2 of 10
			if d := allow(t, l, 1); !d.Allowed || d.Limits()[0].Remaining != left || d.Limits()[0].Reset != 23*time.Hour {
				t.Errorf("%d tokens should be left: %+v", left, d.Limits())
			}
		}
		if d := allow(t, l, 1); d.Allowed || d.RetryAfter != 23*time.Hour || d.Limits()[0].Remaining != 0 {
			t.Errorf("a third of two: %+v", d)
		}
		time.Sleep(23 * time.Hour)
		r := must(l.Reserve(t.Context(), "k", tokenbucket.Cost{"api": 5})) // more than the share, at once
		if err := errors.Join(r.Use("api", 9), r.Settle(t.Context())); err != nil || !r.Allowed {
			t.Errorf("%+v, %v", r.Decision, err)
		}
		if d := allow(t, l, 1); d.Allowed || d.RetryAfter != 24*time.Hour {
			t.Errorf("after 9 of 2: %+v", d)
		}
		r = must(l.Reserve(t.Context(), "other", tokenbucket.Cost{"api": 2}))
		if err := r.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		if d := must(l.Peek(t.Context(), "other")); d.Limits()[0].Remaining != 2 {
			t.Errorf("after it was cancelled: %+v", d.Limits())
		}
	})
}

// A reservation is settled where it was made, although the primary store has come back, or gone.
func TestSettlementsOfAnOutage(t *testing.T) {
	primary, standIn := storetest.NewFaulty(memstore.New()), storetest.NewFaulty(memstore.New())
	const share = 0.25
	buckets := must(fallback.Buckets(primary, standIn, share))
	request := func(tokens int64, standIn bool) store.TokenRequest {
		return store.TokenRequest{Limiter: "api", Key: "k", StandIn: standIn, Charges: []store.Charge{{
			Cost: time.Duration(tokens) * time.Hour, Capacity: 100 * time.Hour, Overdraft: 10 * time.Hour, Interval: time.Hour,
		}}}
	}
	used := func(s store.Buckets) int64 {
		t.Helper()
		r := request(0, false)
		r.Charges[0].Overdraft = 10_000 * time.Hour
		reply := must(s.TakeTokens(t.Context(), r))
		return int64((reply.Debts.At(0) + time.Minute) / time.Hour)
	}
	check := func(inPrimary, inStandIn int64) {
		t.Helper()
		if p, s := used(primary.Store), used(standIn.Store); p != inPrimary || s != inStandIn {
			t.Errorf("the debts are %d and %d hours, want %d and %d", p, s, inPrimary, inStandIn)
		}
	}
	if reply := must(buckets.TakeTokens(t.Context(), request(8, false))); reply.StandIn {
		t.Errorf("before the outage: %+v", reply)
	}
	primary.Break(storetest.Any, storetest.Down)
	if reply := must(buckets.TakeTokens(t.Context(), request(4, false))); !reply.StandIn || !reply.Allowed {
		t.Errorf("in the outage: %+v", reply)
	}
	check(8, 16)
	if _, err := buckets.SettleTokens(t.Context(), request(-1, false)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a settlement that primary has missed: %v", err)
	}
	if reply := must(buckets.SettleTokens(t.Context(), request(3, true))); !reply.StandIn || !reply.Allowed {
		t.Errorf("a settlement in the outage: %+v", reply)
	}
	check(8, 28)
	primary.Mend(storetest.Any)
	if reply := must(buckets.SettleTokens(t.Context(), request(-2, true))); !reply.Allowed || reply.Debts.At(0) > 81*time.Hour {
		t.Errorf("20 of the share of 25 tokens are used: %+v", reply)
	}
	must(buckets.SettleTokens(t.Context(), request(2, false)))
	check(10, 20)

	// A reservation of a whole burst, which is four of the share's: settling more does not make it
	// less.
	ok(t, buckets.ResetTokens(t.Context(), request(0, false)))
	primary.Break(storetest.TakeTokens, storetest.Down)
	must(buckets.TakeTokens(t.Context(), request(100, false)))
	check(0, 400)
	if reply := must(buckets.SettleTokens(t.Context(), request(1, true))); reply.Allowed {
		t.Errorf("a settlement beyond the bound: %+v", reply)
	}
	check(0, 400)
	standIn.Break(storetest.SettleTokens, storetest.Down)
	if _, err := buckets.SettleTokens(t.Context(), request(-1, true)); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("the stand-in is down: %v", err)
	}
}

// A hold is made in both stores, and says if it could not be.
func TestHoldsInBothStores(t *testing.T) {
	limited(t, tokenbucket.PerHour(100), 0.5, func(t *testing.T, primary, standIn *storetest.Faulty, l *tokenbucket.Limiter) {
		held := func() bool {
			t.Helper()
			d := allow(t, l, 1)
			if !d.Allowed && d.RetryAfter != d.Held {
				t.Errorf("a hold: %+v", d)
			}
			return !d.Allowed
		}
		ok(t, l.Hold(t.Context(), "k", time.Minute))
		if !held() {
			t.Error("primary does not hold the key")
		}
		primary.Break(storetest.Any, storetest.Down)
		if !held() {
			t.Error("the stand-in does not hold the key")
		}
		time.Sleep(time.Minute)
		if held() {
			t.Error("the hold has not ended")
		}
		if err := l.Hold(t.Context(), "k", time.Minute); !errors.Is(err, store.ErrUnavailable) || !held() {
			t.Errorf("a hold in an outage: %v", err)
		}
		primary.Mend(storetest.Any)
		if held() {
			t.Error("primary holds the key")
		}
		standIn.Break(storetest.HoldTokens, storetest.Full)
		if err := l.Hold(t.Context(), "k", time.Minute); !errors.Is(err, store.ErrFull) || !held() {
			t.Errorf("a hold with a full stand-in: %v", err)
		}
	})
}

// In an outage a change of the rate keeps the tokens used of a share, decisions about several keys
// charge all or none, and at most some tokens are those of the share.
func TestDecisionsOfAShare(t *testing.T) {
	limited(t, tokenbucket.PerHour(100), 0.25, func(t *testing.T, primary, _ *storetest.Faulty, l *tokenbucket.Limiter) {
		primary.Break(storetest.TakeTokens, storetest.Down)
		allow(t, l, 20) // of 25
		ok(t, l.SetPlan(tokenbucket.PerDay(100)))
		for left := int64(4); left >= 3; left-- {
			if d := allow(t, l, 1); !d.Allowed || d.Limits()[0].Remaining != left {
				t.Errorf("%d tokens should be left: %+v", left, d)
			}
		}
		if d := must(tokenbucket.All(t.Context(), l.Ask("other", 1), l.Ask("k", 4))); d.Allowed {
			t.Errorf("26 of 25 tokens: %+v", d)
		}
		if d := must(tokenbucket.All(t.Context(), l.Ask("other", 1), l.Ask("k", 1))); !d.Allowed {
			t.Errorf("23 of 25 tokens: %+v", d)
		}
		for key, want := range map[string]int64{"k": 2, "other": 24} {
			if d := must(l.AllowAtMost(t.Context(), key, 100)); !d.Allowed || d.Taken != want {
				t.Errorf("what is left of %s: %+v, want %d", key, d, want)
			}
		}
	})
}
