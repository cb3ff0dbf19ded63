package storetest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// calendarLimit is a limit of 10 tokens in each day of a calendar, and of 5 more by settlements.
// Its present day, as the client has it, lasts for so long.
func calendarLimit(n int64, left time.Duration) store.Charge {
	end := time.Now().Add(left).Truncate(time.Microsecond)
	return store.Charge{
		Bucket: "@", Cost: time.Duration(n), Capacity: 10, Overdraft: 5, Interval: 1,
		Period: &store.Period{Begin: end.Add(-24 * time.Hour), End: end, Next: end.Add(24 * time.Hour)},
	}
}

// usedOf checks how many tokens of charge i's calendar are used, and for how long its period lasts:
// that may be less by the time that a test takes.
func (l *ledger) usedOf(reply store.TakeReply, i int, tokens int64, left time.Duration) {
	l.t.Helper()
	debt, end := reply.Debts.At(i), reply.Debts.End(i)
	if debt != time.Duration(tokens) || end > left+clocks || end < left-10*time.Minute || end <= 0 {
		l.t.Fatalf("charge %d: %d tokens in a period of %v, want %d of %v", i, debt, end, tokens, left)
	}
}

func calendarEnds(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.usedOf(l.takes(true, "new", calendarLimit(0, 7*time.Hour)), 0, 0, 7*time.Hour)
	l.usedOf(l.takes(true, "k", calendarLimit(9, 7*time.Hour), hourly.costs(1)), 0, 9, 7*time.Hour)
	h.Advance(shortLease) // as many would have come back of a rate
	l.usedOf(l.takes(true, "k", calendarLimit(1, 7*time.Hour)), 0, 10, 7*time.Hour)
	l.usedOf(l.takes(false, "k", calendarLimit(1, 7*time.Hour)), 0, 10, 7*time.Hour)

	inTime(t, shortLease, func(left time.Duration) (late bool) {
		l := newLedger(t, h)
		began := time.Now()
		l.takes(true, "short", calendarLimit(10, left))
		if time.Since(began) >= left {
			return true
		}
		h.Advance(left * 3 / 2)
		const next = 24 * time.Hour
		l.usedOf(l.takes(true, "short", calendarLimit(0, -left/2)), 0, 0, next)
		l.usedOf(l.takes(true, "short", calendarLimit(6, -left/2)), 0, 6, next)
		l.usedOf(l.takes(false, "short", calendarLimit(6, -left/2)), 0, 6, next)
		return false
	})
}

func calendarOfTheStore(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	for name, c := range map[string]struct{ left, want time.Duration }{
		"ahead": {25 * time.Hour, time.Hour}, "behind": {-time.Hour, 23 * time.Hour}, "right": {5 * time.Hour, 5 * time.Hour},
		"days ahead": {24*10*time.Hour + time.Hour, time.Hour}, "days behind": {-24*9*time.Hour - 2*time.Hour, 22 * time.Hour},
	} {
		reply := l.takes(true, name, calendarLimit(3, c.left))
		if reply.Debts.End(0) > 24*time.Hour { // a clock that is days off may count two as one
			c.want += 24 * time.Hour
		}
		l.usedOf(reply, 0, 3, c.want)
		l.usedOf(l.takes(true, name, calendarLimit(0, c.left)), 0, 3, c.want)
		l.usedOf(l.takes(false, name, calendarLimit(8, 5*time.Hour)), 0, 3, c.want)
	}
}

func calendarKeepsItsEnd(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	l.takes(true, "k", calendarLimit(9, time.Hour))
	l.usedOf(l.takes(false, "k", calendarLimit(2, 15*time.Hour)), 0, 9, time.Hour) // it begins at another hour
	l.usedOf(l.takes(true, "k", calendarLimit(1, -5*time.Hour)), 0, 10, time.Hour)
	if err := h.Store.ResetTokens(background(), l.request("k", calendarLimit(0, time.Hour))); err != nil {
		t.Fatal(err)
	}
	l.usedOf(l.takes(true, "k", calendarLimit(1, 15*time.Hour)), 0, 1, 15*time.Hour)

	far := calendarLimit(9, 50*time.Hour) // as a clock that was set back has left one
	far.Period.Begin, far.Period.Next = far.Period.End.Add(-100*time.Hour), far.Period.End.Add(100*time.Hour)
	l.usedOf(l.takes(true, "far", far), 0, 9, 50*time.Hour)
	l.usedOf(l.takes(true, "far", calendarLimit(2, time.Hour)), 0, 2, time.Hour)
}

func calendarWithOthers(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	const left = 3 * time.Hour
	reply := l.takes(true, "k", hourly.costs(2), calendarLimit(4, left))
	l.usedIn(reply, 0, hourly, 2)
	l.usedOf(reply, 1, 4, left)
	if end := reply.Debts.End(0); end != 0 {
		t.Errorf("a rate has a period of %v", end)
	}
	reply = l.takes(false, "k", calendarLimit(1, left), hourly.costs(9))
	l.usedOf(reply, 0, 4, left)
	l.usedIn(reply, 1, hourly, 2)
	reply = l.takes(false, "k", calendarLimit(7, left), hourly.costs(1))
	l.usedOf(reply, 0, 4, left)
	l.usedIn(reply, 1, hourly, 2)

	most := l.request("k", calendarLimit(2, left), hourly.costs(1))
	most.AtMost = 100
	if reply = l.take(most); reply.Taken != 3 || !reply.Allowed {
		t.Errorf("as often as fits: %+v", reply)
	}
	l.usedOf(reply, 0, 10, left)
	l.usedIn(reply, 1, hourly, 5)
	if reply = l.take(most); reply.Taken != 0 || reply.Allowed {
		t.Errorf("nothing fits: %+v", reply)
	}

	r := l.request("twice", calendarLimit(6, left))
	if reply = l.take(r, r); reply.Allowed {
		t.Errorf("12 tokens of 10: %+v", reply)
	}
	reply = l.take(r, l.request("twice", hourly.costs(1)), l.request("twice", calendarLimit(3, left)))
	l.usedOf(reply, 0, 9, left)
	l.usedIn(reply, 1, hourly, 1)
	l.usedOf(reply, 2, 9, left)

	rate := hourly
	rate.bucket = "@"
	l.takes(true, "other kind", rate.costs(10))
	l.usedOf(l.takes(true, "other kind", calendarLimit(3, left)), 0, 3, left)
	l.usedIn(l.takes(true, "other kind", rate.costs(1)), 0, rate, 1)
}

func calendarSettlements(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	const left = 3 * time.Hour
	settle := func(key string, allowed bool, n, used int64) {
		t.Helper()
		r := l.request(key, calendarLimit(n, left))
		r.StandIn = l.standIn
		reply, err := h.Store.SettleTokens(background(), r)
		if err != nil || reply.Allowed != allowed {
			t.Fatalf("a settlement of %d: %+v, %v", n, reply, err)
		}
		l.usedOf(reply, 0, used, left)
		l.usedOf(l.takes(true, key, calendarLimit(0, left)), 0, used, left)
	}
	l.takes(true, "k", calendarLimit(4, left))
	settle("k", true, 3, 7)
	settle("k", true, -2, 5)
	settle("k", true, 9, 14)
	l.takes(false, "k", calendarLimit(1, left))
	settle("k", false, 2, 15)
	settle("k", true, -16, 0)
	l.usedOf(l.takes(true, "k", calendarLimit(10, left)), 0, 10, left)
	l.take(l.request("new"))
	settle("new", true, -1, 0)
	settle("new", true, 2, 2)
}

func calendarHolds(t *testing.T, h Harness[store.Buckets]) {
	l := newLedger(t, h)
	const left = 3 * time.Hour
	hold := func(l *ledger, key string, d time.Duration) {
		t.Helper()
		if err := h.Store.HoldTokens(background(), l.request(key, calendarLimit(0, left)), d); err != nil {
			t.Fatal(err)
		}
	}
	l.takes(true, "k", calendarLimit(4, left))
	for _, key := range []string{"k", "full"} {
		hold(l, key, time.Hour)
	}
	for key, used := range map[string]int64{"k": 4, "full": 0} {
		reply := l.takes(false, key, calendarLimit(1, left))
		l.held(reply, time.Hour)
		l.usedOf(reply, 0, used, left)
	}
	l.takes(true, "short", calendarLimit(4, left))
	hold(l, "short", shortLease)
	h.Advance(pastLease)
	l.usedOf(l.takes(true, "short", calendarLimit(1, left)), 0, 5, left)

	inTime(t, shortLease, func(left time.Duration) (late bool) {
		l := newLedger(t, h)
		began := time.Now()
		l.takes(true, "ends", calendarLimit(4, left))
		if time.Since(began) >= left {
			return true
		}
		hold(l, "ends", time.Hour)
		h.Advance(left * 3 / 2)
		reply := l.takes(false, "ends", calendarLimit(1, -left/2))
		l.held(reply, time.Hour)
		l.usedOf(reply, 0, 0, 24*time.Hour)
		return false
	})
}
