package denials

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// A denial from memory is one that the server would give too, whenever between question and answer
// it made the one that is remembered.
func TestARememberedDenialIsTheServers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		span := func(name string, most time.Duration) time.Duration {
			little := min(most, 3*time.Microsecond)
			return time.Duration(rapid.OneOf(rapid.Int64Range(0, int64(little)), rapid.Int64Range(0, int64(most))).Draw(t, name))
		}
		ahead := span("the server's clock is ahead", time.Microsecond)
		capacity := span("capacity", time.Millisecond)
		debt := span("debt", capacity)
		asked := span("asked", time.Millisecond)
		made := asked + span("way there", 500*time.Microsecond)
		heard := made + span("way back", 500*time.Microsecond)
		now := heard + span("later", 2*time.Millisecond)
		d := denial{charges: []store.Charge{{Capacity: capacity}}, debts: store.OneDebt(debt), sentAt: asked, repliedAt: heard}

		// The server's clock counts microseconds, and began when it did.
		clock := func(at time.Duration) time.Duration { return (at + ahead).Truncate(time.Microsecond) }
		c := store.Charge{Capacity: capacity}
		there := c.Debt(clock(made) + debt - clock(now))
		c.Cost = rapid.SampledFrom([]time.Duration{capacity - there, capacity - there + 1, span("cost", time.Millisecond)}).Draw(t, "cost")
		if c.Fits(there) && d.holdsFor([]store.Charge{c}, now) {
			t.Errorf("denied, but it would leave %v of %v", there, capacity)
		}
		if debts := d.replyAt(now).Debts; there > debts.At(0) {
			t.Errorf("told that %v are owed, of %v", debts.At(0), there)
		}
		other := c
		other.Capacity++
		if d.holdsFor([]store.Charge{other}, now) {
			t.Error("it holds for another plan")
		}
	})
}

// A denial that was in flight when its key was reset says nothing of the present state.
func TestADenialOnItsWayIsForgotten(t *testing.T) {
	var d Cache
	d.Init()
	defer d.Stop()
	charges := []store.Charge{{Cost: time.Hour, Capacity: time.Hour}}
	denied := store.TakeReply{Debts: store.OneDebt(time.Hour)}
	_, q, _ := d.lookup("api", "k", charges)
	d.Remove("api", "k")
	q.store("api", "k", charges, &denied)
	_, q, known := d.lookup("api", "k", charges)
	if known {
		t.Fatal("it is remembered")
	}
	q.store("api", "k", charges, &denied)
	if _, _, known := d.lookup("api", "k", charges); !known {
		t.Error("the next one is not remembered")
	}
	_, q, _ = d.lookup("api", "allowed", charges)
	q.store("api", "allowed", charges, &store.TakeReply{Allowed: true, Debts: store.OneDebt(time.Hour)})
	if _, _, known := d.lookup("api", "allowed", charges); known {
		t.Error("what was allowed is remembered")
	}
}

// A hold denies what has a cost in all buckets, since it may be any of them that is held, until it
// may have ended.
func TestADenialByAHold(t *testing.T) {
	charges := func(costs ...time.Duration) (all []store.Charge) {
		for _, cost := range costs {
			all = append(all, store.Charge{Cost: cost, Capacity: time.Hour, Interval: time.Second})
		}
		return all
	}
	d := denial{charges: charges(1, 1), debts: store.MakeDebts(2), held: time.Second, sentAt: 1000, repliedAt: 2000}
	for name, test := range map[string]struct {
		charges []store.Charge
		now     time.Duration
		holds   bool
	}{
		"all":           {charges(1, 2), 3000, true},
		"the first one": {charges(1, 0), 3000, false},
		"none":          {charges(0, 0), 3000, false},
		"a moment left": {charges(1, 1), time.Second - clockStep + 999, true},
		"perhaps over":  {charges(1, 1), time.Second - clockStep + 1000, false},
	} {
		if d.holdsFor(test.charges, test.now) != test.holds {
			t.Errorf("%s: want %v", name, test.holds)
		}
	}
	if reply := d.replyAt(time.Second); reply.Held != time.Second-(time.Second-2000-clockStep) || !reply.Cached {
		t.Errorf("%+v", reply)
	}
}

func TestSoManyDenialsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // nothing expires, however slow the machine is
		var d Cache
		d.Init()
		defer d.Stop()
		charges := []store.Charge{{Cost: time.Hour, Capacity: time.Hour}}
		for i := range 100_000 {
			key := fmt.Sprint(i)
			_, q, _ := d.lookup("api", key, charges)
			q.store("api", key, charges, &store.TakeReply{Debts: store.OneDebt(time.Hour)})
		}
		if n := d.Len(); n < 60_000 || n > denialShards*denialsPerShard {
			t.Errorf("%d are remembered", n)
		}
	})
}

// A denial is served for a second, and is known for a while longer.
func TestAnOldDenialIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d Cache
		d.Init()
		defer d.Stop()
		charges := []store.Charge{{Cost: time.Hour, Capacity: time.Hour}}
		_, q, _ := d.lookup("api", "k", charges)
		if q.denied {
			t.Error("an unknown key was denied lately")
		}
		denied := store.TakeReply{Debts: store.OneDebt(time.Hour)}
		q.store("api", "k", charges, &denied)
		time.Sleep(denialTTL - 1)
		if _, _, known := d.lookup("api", "k", charges); !known {
			t.Error("it is served for less than a second")
		}
		time.Sleep(time.Nanosecond)
		if _, q, known := d.lookup("api", "k", charges); known || !q.denied {
			t.Errorf("after a second it is served: %v, known: %v", known, q.denied)
		}
		time.Sleep(knownFor - denialTTL)
		if _, q, _ := d.lookup("api", "k", charges); q.denied {
			t.Error("it is known for ever")
		}
	})
}
