package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Buckets is the contract of store.Buckets.
func Buckets[S store.Buckets](t *testing.T, run Runner[S]) {
	runAll(t, run, []testCase[store.Buckets]{
		{"the first call leaves one token less", firstCall},
		{"a burst is exact", exactBurst},
		{"tokens come back one by one", refill},
		{"rates that divide no nanosecond are rounded by one", unevenRates},
		{"a full bucket holds no more than its burst", neverAboveBurst},
		{"a denial charges nothing", denialIsFree},
		{"several limits charge all or none", allOrNone},
		{"peek charges nothing", peekIsFree},
		{"a cost of zero is allowed and charges nothing", zeroCost},
		{"keys, limiters and buckets are separate", apart},
		{"limiters with the same name share their buckets", shared},
		{"reset fills the bucket", reset},
		{"a new plan keeps what a key has used", newPlan},
		{"a smaller plan clamps what a key has used", smallerPlan},
		{"another rate keeps the tokens used", anotherRate},
		{"looks and denials at another rate change nothing", lookAtAnotherRate},
		{"a smaller burst at the same rate tells how much is used", lookAtASmallerBurst},
		{"another rate fills a bucket that is to be fresh", freshRate},
		{"settlements charge more or give back", settlement},
		{"settlements of several buckets are made one by one", settleSeveral},
		{"settlements give back no more than was used", refundBelowZero},
		{"settlements charge no more than the overdraft", overdraft},
		{"settlements at another rate", settleAtAnotherRate},
		{"a held bucket is not charged", holdKey},
		{"a hold of one limit denies all", holdOfOneLimit},
		{"a hold is not shortened", holdLonger},
		{"a hold ends", holdEnds},
		{"reset ends a hold", resetHeld},
		{"settlements reach held buckets", settleHeld},
		{"at most some tokens are as many as there are", takeAtMost},
		{"the tokens of a calendar come back at the end of a period", calendarEnds},
		{"the store's clock says which period it is", calendarOfTheStore},
		{"a bucket keeps the end of its period", calendarKeepsItsEnd},
		{"limits of calendars and rates charge all or none", calendarWithOthers},
		{"settlements of calendars", calendarSettlements},
		{"a held bucket of a calendar", calendarHolds},
		{"several keys are charged all or none", severalKeys(severalAllOrNone)},
		{"several charges to a bucket add up", sameKeyTwice},
		{"concurrent decisions about several keys never exceed a burst", severalKeys(severalAtOnce)},
		{"concurrent calls never exceed the burst", concurrentTakes},
		{"keys may have any bytes", oddKeys},
		{"a cancelled context is its error", cancelledTake},
		{"a store that was shut down charges nothing", shutDownBuckets},
		{"a closed store is unavailable", closedTake},
		{"settlements and holds of a cancelled context change nothing", cancelledCharges},
		{"a store that was shut down settles, and a closed one does not", closedCharges},
	})
}

func newLimiter(t *testing.T, h Harness[store.Buckets], plan tokenbucket.Plan) *tokenbucket.Limiter {
	t.Helper()
	l, err := tokenbucket.New(h.Store, unique("limiter"), plan)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func take(t *testing.T, l *tokenbucket.Limiter, key string, n int64) tokenbucket.Decision {
	t.Helper()
	d, err := l.AllowN(background(), key, n)
	if err != nil {
		t.Fatalf("AllowN(%q, %d): %v", key, n, err)
	}
	return d
}

func wantAllowed(t *testing.T, d tokenbucket.Decision, remaining int64) {
	t.Helper()
	if !d.Allowed || d.RetryAfter != 0 {
		t.Fatalf("denied, want allowed: %+v", d)
	}
	if d.Limits()[0].Remaining != remaining {
		t.Fatalf("%d tokens remain, want %d: %+v", d.Limits()[0].Remaining, remaining, d)
	}
}

func wantDenied(t *testing.T, d tokenbucket.Decision) {
	t.Helper()
	if d.Allowed || d.RetryAfter <= 0 {
		t.Fatalf("allowed, want denied with a time to wait: %+v", d)
	}
}

func firstCall(t *testing.T, h Harness[store.Buckets]) {
	d := take(t, newLimiter(t, h, tokenbucket.PerMinute(100)), "k", 1)
	wantAllowed(t, d, 99)
	l := d.Limits()[0]
	if l.Capacity != 100 || l.Window != time.Minute {
		t.Errorf("capacity %d in %v, want 100 in 1m", l.Capacity, l.Window)
	}
	if l.Reset <= 0 || l.Reset > 600*time.Millisecond {
		t.Errorf("full again in %v, want at most the 600ms of one token", l.Reset)
	}
}

func exactBurst(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(10).Burst(5))
	for i := range int64(5) {
		wantAllowed(t, take(t, l, "k", 1), 4-i)
	}
	d := take(t, l, "k", 1)
	wantDenied(t, d)
	if d.RetryAfter > 6*time.Minute {
		t.Errorf("retry after %v, want at most the 6m of one token", d.RetryAfter)
	}
	wantAllowed(t, take(t, l, "whole", 5), 0)
	wantDenied(t, take(t, l, "whole", 1))
}

func refill(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.Per(1, 40*time.Millisecond).Burst(2))
	wantAllowed(t, take(t, l, "k", 2), 0)
	d := take(t, l, "k", 2)
	for d.Allowed { // the process stood still for 80 ms
		d = take(t, l, "k", 2)
	}
	h.Advance(d.RetryAfter)
	if d = take(t, l, "k", 2); !d.Allowed {
		t.Fatalf("denied after the time to wait: %+v", d)
	}
}

func unevenRates(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(7).Burst(7)) // one in 514,285,714,285 5/7 ns
	for i := range int64(7) {
		wantAllowed(t, take(t, l, "k", 1), 6-i)
	}
	wantDenied(t, take(t, l, "k", 1))
	d := take(t, l, "k", 7)
	wantDenied(t, d)
	if d.RetryAfter > time.Hour+time.Microsecond {
		t.Errorf("seven tokens of seven an hour come back in %v", d.RetryAfter)
	}
	if s := d.Limits()[0]; s.Reset > time.Hour || s.Window != time.Hour {
		t.Errorf("seven tokens an hour are reported as %+v", s)
	}
	quick := newLimiter(t, h, tokenbucket.PerSecond(300_000_000).Burst(3)) // 10/3 ns each
	wantAllowed(t, take(t, quick, "k", 3), 0)
}

func neverAboveBurst(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.Per(1, 5*time.Millisecond).Burst(3))
	take(t, l, "k", 3)
	h.Advance(100 * time.Millisecond)
	d, err := l.Peek(background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if d.Limits()[0].Remaining != 3 || d.Limits()[0].Reset != 0 {
		t.Errorf("after a long pause %+v, want a full bucket of 3", d.Limits()[0])
	}
}

func denialIsFree(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(10))
	take(t, l, "k", 7)
	for range 5 {
		d := take(t, l, "k", 4)
		wantDenied(t, d)
		if d.Limits()[0].Remaining != 3 {
			t.Fatalf("%d tokens remain after a denial, want 3", d.Limits()[0].Remaining)
		}
	}
	wantAllowed(t, take(t, l, "k", 3), 0)
}

func allOrNone(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.Limits{
		tokenbucket.PerHour(100).Named("hour"),
		tokenbucket.PerDay(3).Named("day"),
	})
	for range 3 {
		if d := take(t, l, "k", 1); !d.Allowed {
			t.Fatalf("denied: %+v", d)
		}
	}
	d := take(t, l, "k", 1)
	wantDenied(t, d)
	if hour, day := d.Limits()[0], d.Limits()[1]; hour.Remaining != 97 || hour.RetryAfter != 0 || day.Remaining != 0 || day.RetryAfter == 0 {
		t.Errorf("a denial by the day left %+v", d.Limits())
	}
}

func peekIsFree(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(2))
	for _, remaining := range []int64{2, 2} {
		d, err := l.Peek(background(), "k")
		if err != nil {
			t.Fatal(err)
		}
		wantAllowed(t, d, remaining)
	}
	take(t, l, "k", 2)
	d, err := l.Peek(background(), "k")
	if err != nil {
		t.Fatal(err)
	}
	wantDenied(t, d)
}

func zeroCost(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(2))
	take(t, l, "k", 2)
	wantAllowed(t, take(t, l, "k", 0), 0)
}

func apart(t *testing.T, h Harness[store.Buckets]) {
	a, b := newLimiter(t, h, tokenbucket.PerHour(1)), newLimiter(t, h, tokenbucket.PerHour(1))
	wantAllowed(t, take(t, a, "k", 1), 0)
	wantAllowed(t, take(t, a, "k:", 1), 0)
	wantAllowed(t, take(t, b, "k", 1), 0)
	named := newLimiter(t, h, tokenbucket.PerHour(1).Named("n"))
	wantAllowed(t, take(t, named, "k", 1), 0)
}

func shared(t *testing.T, h Harness[store.Buckets]) {
	a := newLimiter(t, h, tokenbucket.PerHour(2))
	b, err := tokenbucket.New(h.Store, a.Name(), tokenbucket.PerHour(2))
	if err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, take(t, a, "k", 1), 1)
	wantAllowed(t, take(t, b, "k", 1), 0)
	wantDenied(t, take(t, a, "k", 1))
}

func reset(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.Limits{tokenbucket.PerHour(2), tokenbucket.PerDay(2)})
	take(t, l, "k", 2)
	take(t, l, "other", 1)
	if err := l.Reset(background(), "k"); err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, take(t, l, "k", 1), 1)
	wantAllowed(t, take(t, l, "other", 1), 0)
}

func newPlan(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(7))
	take(t, l, "k", 7)
	if err := l.SetPlan(tokenbucket.PerHour(22).Burst(44)); err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, take(t, l, "k", 1), 36)
}

func smallerPlan(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerDay(1000))
	take(t, l, "k", 1000)
	if err := l.SetPlan(tokenbucket.PerMinute(1)); err != nil {
		t.Fatal(err)
	}
	d := take(t, l, "k", 1)
	wantDenied(t, d)
	if d.RetryAfter > time.Minute {
		t.Errorf("locked out for %v by a plan of a minute", d.RetryAfter)
	}
}

func concurrentTakes(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerDay(50))
	var (
		wg      sync.WaitGroup
		allowed atomic.Int64
	)
	for range 8 {
		wg.Go(func() {
			for range 25 {
				d, err := l.Allow(background(), "k")
				if err != nil {
					t.Errorf("Allow: %v", err)
					return
				}
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := allowed.Load(); got != 50 {
		t.Errorf("%d of 200 concurrent calls were allowed by a burst of 50", got)
	}
}

func oddKeys(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(1))
	for _, key := range []string{"{a}", "a}{b", "\x00", "ü\xff", "a b\r\n", "*"} {
		wantAllowed(t, take(t, l, key, 1), 0)
		wantDenied(t, take(t, l, key, 1))
	}
}

func cancelledTake(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(1))
	ctx, cancel := context.WithCancel(background())
	cancel()
	if _, err := l.Allow(ctx, "k"); !errors.Is(err, context.Canceled) {
		t.Errorf("Allow with a cancelled context: %v", err)
	}
	wantAllowed(t, take(t, l, "k", 1), 0)
}

func closedTake(t *testing.T, h Harness[store.Buckets]) {
	l := newLimiter(t, h, tokenbucket.PerHour(1))
	closes(t, h.Store)
	_, err := l.Allow(background(), "k")
	wantErrClosed(t, err)
	wantErrClosed(t, l.Reset(background(), "k"))
}

func shutDownBuckets(t *testing.T, h Harness[store.Buckets]) {
	shutsDown(t, h.Store)
	_, err := h.Store.TakeTokens(background(), store.TokenRequest{Limiter: unique("limiter"), Key: "k"})
	wantErrClosed(t, err)
}
