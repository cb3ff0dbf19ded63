package storetest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ledger makes charges to the buckets of a limiter.
type ledger struct {
	t       *testing.T
	store   store.Buckets
	advance func(time.Duration)
	limiter string
	standIn bool // made the last decision
}

func newLedger(t *testing.T, h Harness[store.Buckets]) *ledger {
	return &ledger{t: t, store: h.Store, advance: h.Advance, limiter: unique("limiter")}
}

// limit is one at which a token takes so long that none comes back during a test.
type limit struct {
	bucket           string
	interval         time.Duration
	burst, overdraft int64
	fresh            bool
}

// costs returns the charge of n tokens.
func (l limit) costs(n int64) store.Charge {
	return store.Charge{
		Bucket: l.bucket, Cost: time.Duration(n) * l.interval, Capacity: time.Duration(l.burst) * l.interval,
		Overdraft: time.Duration(l.overdraft) * l.interval, Interval: l.interval, Fresh: l.fresh,
	}
}

var (
	hourly = limit{interval: time.Hour, burst: 10, overdraft: 5}
	daily  = limit{interval: 24 * time.Hour, burst: 10, overdraft: 5}
	second = limit{bucket: "second", interval: time.Hour, burst: 10, overdraft: 5}
)

func (l *ledger) request(key string, charges ...store.Charge) store.TokenRequest {
	return store.TokenRequest{Limiter: l.limiter, Key: key, Charges: charges}
}

func (l *ledger) take(r store.TokenRequest, more ...store.TokenRequest) store.TakeReply {
	l.t.Helper()
	reply, err := l.store.TakeTokens(background(), r, more...)
	if err != nil {
		l.t.Fatalf("TakeTokens: %v", err)
	}
	l.standIn = reply.StandIn
	return reply
}

// takes takes tokens of a key, and checks whether the decision allows it.
func (l *ledger) takes(allowed bool, key string, charges ...store.Charge) store.TakeReply {
	l.t.Helper()
	reply := l.take(l.request(key, charges...))
	if reply.Allowed != allowed {
		l.t.Fatalf("TakeTokens of %+v: %+v, want an Allowed of %v", charges, reply, allowed)
	}
	return reply
}

// settles adds a number of tokens to a bucket, of which so many are used then.
func (l *ledger) settles(allowed bool, key string, lim limit, n, used int64) {
	l.t.Helper()
	r := l.request(key, lim.costs(n))
	r.StandIn = l.standIn
	reply, err := l.store.SettleTokens(background(), r)
	if err != nil {
		l.t.Fatalf("SettleTokens: %v", err)
	}
	if reply.Allowed != allowed {
		l.t.Fatalf("SettleTokens of %d: %+v, want an Allowed of %v", n, reply, allowed)
	}
	l.usedIn(reply, 0, lim, used)
	l.used(key, lim, used)
}

func (l *ledger) holds(key string, d time.Duration, limits ...limit) {
	l.t.Helper()
	var charges []store.Charge
	for _, lim := range limits {
		charges = append(charges, lim.costs(1))
	}
	if err := l.store.HoldTokens(background(), l.request(key, charges...), d); err != nil {
		l.t.Fatalf("HoldTokens: %v", err)
	}
}

// used checks how many tokens of a bucket are used, which charges nothing.
func (l *ledger) used(key string, lim limit, want int64) {
	l.t.Helper()
	l.usedIn(l.takes(true, key, lim.costs(0)), 0, lim, want)
}

// usedIn checks how many tokens of charge i's bucket a reply says are used. Less than a twentieth
// of one may have come back.
func (l *ledger) usedIn(reply store.TakeReply, i int, lim limit, want int64) {
	l.t.Helper()
	got, most := reply.Debts.At(i), time.Duration(want)*lim.interval
	if got > most || got < most-lim.interval/20 || got < 0 {
		l.t.Fatalf("charge %d: a debt of %v, which is not that of %d tokens in %v each: %+v", i, got, want, lim.interval, reply)
	}
}

// held checks for how long buckets are held.
func (l *ledger) held(reply store.TakeReply, want time.Duration) {
	l.t.Helper()
	if reply.Held > want || reply.Held < want-min(want, time.Minute) || want > 0 && reply.Held == 0 {
		l.t.Fatalf("held for %v, want %v: %+v", reply.Held, want, reply)
	}
}

func anotherRate(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	much := limit{interval: time.Hour, burst: 1000}
	l.takes(true, "k", hourly.costs(7))
	l.used("k", daily, 7)
	l.usedIn(l.takes(true, "k", daily.costs(1)), 0, daily, 8)
	l.used("k", hourly, 8)
	l.usedIn(l.takes(true, "k", hourly.costs(1), second.costs(2)), 0, hourly, 9)
	l.usedIn(l.takes(true, "k", second.costs(0), daily.costs(1)), 1, daily, 10)
	l.takes(false, "k", daily.costs(1))
	l.usedIn(l.takes(true, "k", much.costs(100)), 0, much, 110)
	l.used("k", second, 2)
}

func lookAtAnotherRate(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	small := limit{interval: 24 * time.Hour, burst: 2}
	l.takes(true, "k", hourly.costs(5))
	l.used("k", small, 2) // of a smaller burst all tokens are used, and no more
	l.usedIn(l.takes(false, "k", small.costs(1)), 0, small, 2)
	l.usedIn(l.takes(false, "k", small.costs(0), second.costs(11)), 0, small, 2)
	l.used("k", hourly, 5)
}

// A denial tells when the key can be charged again, however much was used before the burst became
// smaller. A settlement leaves no more than the overdraft allows.
func lookAtASmallerBurst(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	small, other := hourly, second
	small.burst, small.overdraft = 2, 1
	other.burst = 2
	l.takes(true, "k", hourly.costs(9), second.costs(9))
	l.used("k", small, 9)
	l.usedIn(l.takes(false, "k", small.costs(1)), 0, small, 9)
	l.usedIn(l.takes(false, "k", small.costs(1), other.costs(1)), 1, other, 9)
	l.used("k", hourly, 9)
	l.settles(true, "k", small, 0, 9)
	l.settles(true, "k", small, -1, 2)
	l.takes(true, "k", hourly.costs(8))
	l.settles(false, "k", small, 1, 3)
}

func freshRate(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	fresh := daily
	fresh.fresh = true
	l.takes(true, "k", hourly.costs(7))
	l.used("k", fresh, 0)
	l.usedIn(l.takes(true, "k", fresh.costs(3)), 0, fresh, 3)
	l.usedIn(l.takes(true, "k", fresh.costs(1)), 0, fresh, 4)
	l.used("k", hourly, 4)
}

func settlement(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(4))
	l.settles(true, "k", hourly, 3, 7)
	l.settles(true, "k", hourly, -2, 5)
	l.settles(true, "k", hourly, 0, 5)
	l.takes(false, "k", hourly.costs(6))
	l.takes(true, "k", hourly.costs(5))
	l.settles(true, "k", hourly, -10, 0)
	l.takes(true, "k", hourly.costs(10))
	l.take(l.request("new"))
	l.settles(true, "new", hourly, 2, 2)
}

func settleSeveral(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(4), second.costs(4))
	r := l.request("k", second.costs(20), hourly.costs(-1))
	r.StandIn = l.standIn
	reply, err := l.store.SettleTokens(background(), r)
	if err != nil || reply.Allowed {
		t.Fatalf("a settlement beyond one overdraft: %+v, %v", reply, err)
	}
	l.usedIn(reply, 0, second, 15)
	l.usedIn(reply, 1, hourly, 3)
	l.used("k", second, 15)
	l.used("k", hourly, 3)
}

func refundBelowZero(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(2))
	l.settles(true, "k", hourly, -5, 0)
	l.takes(false, "k", hourly.costs(11))
	l.usedIn(l.takes(true, "k", hourly.costs(9)), 0, hourly, 9)
	l.takes(false, "k", hourly.costs(2))
	l.take(l.request("new"))
	l.settles(true, "new", hourly, -5, 0)
	l.usedIn(l.takes(true, "new", hourly.costs(10)), 0, hourly, 10)
	l.takes(false, "new", hourly.costs(1))
}

func overdraft(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(10))
	l.settles(true, "k", hourly, 5, 15)
	l.takes(false, "k", hourly.costs(1))
	l.settles(false, "k", hourly, 1, 15)
	l.settles(false, "k", hourly, 1000, 15)
	l.settles(true, "k", hourly, -6, 9)
	l.takes(true, "k", hourly.costs(1))
	none := second
	none.overdraft = 0
	l.takes(true, "k", none.costs(9))
	l.settles(false, "k", none, 2, 10)
}

func settleAtAnotherRate(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(4))
	l.settles(true, "k", daily, -1, 3)
	l.settles(true, "k", hourly, 3, 6)
	l.settles(false, "k", daily, 10, 15)
	l.used("k", hourly, 10) // an overdraft at another rate is not counted
}

func holdKey(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	other := newLedger(t, h)
	l.takes(true, "k", hourly.costs(3))
	l.holds("k", time.Hour, hourly)
	l.holds("full", time.Hour, hourly)
	for _, rate := range []limit{hourly, daily} {
		reply := l.takes(false, "k", rate.costs(1))
		l.held(reply, time.Hour)
		l.usedIn(reply, 0, rate, 3)
		l.held(l.takes(true, "k", rate.costs(0)), time.Hour)
		l.held(l.takes(false, "full", rate.costs(1)), time.Hour)
		l.used("full", rate, 0)
	}
	l.held(l.takes(true, "k", second.costs(1)), 0)
	l.held(l.takes(true, "another", hourly.costs(1)), 0)
	l.held(other.takes(true, "k", hourly.costs(1)), 0)
}

func holdOfOneLimit(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.holds("both", time.Hour, hourly, second)
	l.takes(false, "both", hourly.costs(1))
	l.takes(false, "both", second.costs(1))
	l.holds("k", time.Hour, second)
	reply := l.takes(false, "k", hourly.costs(1), second.costs(1))
	l.held(reply, time.Hour)
	l.usedIn(reply, 0, hourly, 0)
	l.used("k", hourly, 0)
	l.usedIn(l.takes(true, "k", hourly.costs(1), second.costs(0)), 0, hourly, 1)
}

func holdLonger(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.holds("k", time.Hour, hourly)
	l.holds("k", time.Minute, hourly, second)
	l.held(l.takes(false, "k", hourly.costs(1)), time.Hour)
	l.held(l.takes(false, "k", second.costs(1)), time.Minute)
	l.holds("k", 2*time.Hour, hourly)
	l.held(l.takes(false, "k", hourly.costs(1)), 2*time.Hour)
	l.held(l.takes(false, "k", second.costs(1), hourly.costs(1)), 2*time.Hour)
}

func holdEnds(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(3))
	l.holds("k", shortLease, hourly)
	l.holds("full", shortLease, hourly)
	h.Advance(pastLease)
	for _, key := range []string{"k", "full"} {
		l.held(l.takes(true, key, hourly.costs(1)), 0)
	}
	l.used("k", hourly, 4)
	l.used("full", hourly, 1)
}

func resetHeld(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(3), second.costs(3))
	l.holds("k", time.Hour, hourly, second)
	if err := h.Store.ResetTokens(background(), l.request("k", daily.costs(1))); err != nil {
		t.Fatal(err)
	}
	reply := l.takes(true, "k", hourly.costs(1))
	l.held(reply, 0)
	l.usedIn(reply, 0, hourly, 1)
	l.held(l.takes(false, "k", second.costs(1)), time.Hour)
	l.used("k", second, 3)
}

func settleHeld(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(3))
	l.holds("k", time.Hour, hourly)
	l.settles(true, "k", hourly, 2, 5)
	l.settles(true, "k", hourly, -5, 0)
	l.held(l.takes(false, "k", hourly.costs(1)), time.Hour)
}

func takeAtMost(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	most := func(n int64, want int64, charges ...store.Charge) store.TakeReply {
		t.Helper()
		r := l.request("k", charges...)
		r.AtMost = n
		reply := l.take(r)
		if reply.Taken != want || reply.Allowed != (want > 0) {
			t.Fatalf("%d times %+v at most: %+v, want %d", n, charges, reply, want)
		}
		return reply
	}
	l.usedIn(most(4, 4, hourly.costs(1)), 0, hourly, 4)
	l.usedIn(most(100, 3, hourly.costs(2)), 0, hourly, 10)
	l.usedIn(most(100, 0, hourly.costs(1)), 0, hourly, 10)
	reply := most(1<<62, 3, second.costs(3), hourly.costs(0))
	l.usedIn(reply, 0, second, 9)
	l.usedIn(reply, 1, hourly, 10)
	most(5, 0, second.costs(1), hourly.costs(1))
	l.used("k", second, 9)
	third := limit{bucket: "third", interval: time.Hour, burst: 100}
	reply = most(1000, 1, third.costs(10), second.costs(1))
	l.usedIn(reply, 0, third, 10)
	l.usedIn(reply, 1, second, 10)
	l.holds("k", time.Hour, third)
	l.held(most(10, 0, third.costs(1)), time.Hour)
	l.used("k", third, 10)
	if reply := l.takes(true, "k", limit{bucket: "fourth", interval: time.Hour, burst: 1}.costs(1)); reply.Taken != 0 {
		t.Errorf("a decision that is not about at most some tokens has taken %d", reply.Taken)
	}
}

// severalKeys runs a test of decisions about several keys with keys that have homes of their own,
// unless the store says that it cannot charge them together, and with keys that have the same one.
func severalKeys(test func(l *ledger, request func(key string, charges ...store.Charge) store.TokenRequest)) func(*testing.T, Harness[store.Buckets]) {
	return func(t *testing.T, h Harness[store.Buckets]) {
		l := newLedger(t, h)
		r := l.request("first", hourly.costs(1))
		if _, err := h.Store.TakeTokens(background(), r, l.request("other", hourly.costs(1)), l.request("third", hourly.costs(1))); err == nil {
			l = newLedger(t, h)
			test(l, l.request)
		} else if !errors.Is(err, store.ErrManySlots) || !errors.Is(err, errors.ErrUnsupported) {
			t.Fatalf("TakeTokens of several keys: %v", err)
		} else {
			for _, key := range []string{"first", "other", "third"} {
				l.used(key, hourly, 0)
			}
		}
		l = newLedger(t, h)
		test(l, func(key string, charges ...store.Charge) store.TokenRequest {
			r := l.request(key, charges...)
			r.Home = &store.BucketHome{Limiter: l.limiter, Key: "home"}
			return r
		})
	}
}

func severalAllOrNone(l *ledger, request func(string, ...store.Charge) store.TokenRequest) {
	l.t.Helper()
	check := func(reply store.TakeReply, allowed bool, used ...int64) {
		l.t.Helper()
		if reply.Allowed != allowed {
			l.t.Fatalf("%+v, want an Allowed of %v", reply, allowed)
		}
		for i, n := range used {
			l.usedIn(reply, i, []limit{hourly, second, hourly}[i], n)
		}
	}
	a, b := request("a", hourly.costs(2), second.costs(1)), request("b", hourly.costs(6))
	check(l.take(a, b), true, 2, 1, 6)
	check(l.take(b, a), false)
	check(l.take(a, b), false, 2, 1, 6)
	look := request("a", hourly.costs(0), second.costs(0))
	check(l.take(look, request("b", hourly.costs(4))), true, 2, 1, 10)
	check(l.take(a, request("b", hourly.costs(0))), true, 4, 2, 10)
	check(l.take(look, request("b", hourly.costs(0)), request("c", hourly.costs(10))), true, 4, 2, 10)
	if err := l.store.HoldTokens(background(), b, time.Hour); err != nil {
		l.t.Fatal(err)
	}
	if err := l.store.ResetTokens(background(), request("c", hourly.costs(0))); err != nil {
		l.t.Fatal(err)
	}
	reply := l.take(a, request("c", hourly.costs(1)), b)
	l.held(reply, time.Hour)
	check(reply, false, 4, 2, 0)
	check(l.take(a, request("b", hourly.costs(0))), true, 6, 3, 10)
}

func sameKeyTwice(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	r := l.request("k", hourly.costs(6))
	for range 2 {
		reply := l.take(r, r)
		if reply.Allowed {
			t.Fatalf("12 tokens of 10: %+v", reply)
		}
		l.usedIn(reply, 0, hourly, 0)
		l.usedIn(reply, 1, hourly, 0)
	}
	r = l.request("k", second.costs(1), hourly.costs(3))
	reply := l.take(r, l.request("k", hourly.costs(3)), l.request("k", hourly.costs(4)))
	if !reply.Allowed {
		t.Fatalf("10 tokens of 10: %+v", reply)
	}
	l.usedIn(reply, 0, second, 1)
	for i := 1; i < 4; i++ {
		l.usedIn(reply, i, hourly, 10)
	}
	l.used("k", hourly, 10)
}

// severalAtOnce decides about two keys, in both orders, at the same time.
func severalAtOnce(l *ledger, request func(string, ...store.Charge) store.TokenRequest) {
	l.t.Helper()
	lim := limit{interval: time.Hour, burst: 50}
	a, b := request("a", lim.costs(1)), request("b", lim.costs(1))
	var (
		wg      sync.WaitGroup
		allowed atomic.Int64
	)
	for i := range 8 {
		first, other := a, b
		if i%2 == 1 {
			first, other = b, a
		}
		wg.Go(func() {
			for range 10 {
				reply, err := l.store.TakeTokens(background(), first, other)
				if err != nil {
					l.t.Errorf("TakeTokens: %v", err)
					return
				}
				if reply.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := allowed.Load(); got != lim.burst {
		l.t.Errorf("%d of 80 concurrent decisions were allowed by two bursts of %d", got, lim.burst)
	}
}

func cancelledCharges(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(3))
	ctx, cancel := context.WithCancel(background())
	cancel()
	r := l.request("k", hourly.costs(1))
	r.StandIn = l.standIn
	if _, err := h.Store.SettleTokens(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("SettleTokens with a cancelled context: %v", err)
	}
	if err := h.Store.HoldTokens(ctx, r, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("HoldTokens with a cancelled context: %v", err)
	}
	l.usedIn(l.takes(true, "k", hourly.costs(1)), 0, hourly, 4)
}

func closedCharges(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", hourly.costs(3))
	r := l.request("k", hourly.costs(1))
	shutsDown(t, h.Store)
	if reply, err := h.Store.SettleTokens(background(), r); err != nil || !reply.Allowed {
		t.Errorf("SettleTokens after Shutdown: %+v, %v", reply, err)
	}
	closes(t, h.Store)
	_, err := h.Store.SettleTokens(background(), r)
	wantErrClosed(t, err)
	wantErrClosed(t, h.Store.HoldTokens(background(), r, time.Hour))
}
