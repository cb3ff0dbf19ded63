package redisstore

import (
	"fmt"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// A denial from memory is one that the server would give too, whenever between question and answer it
// made the one that is remembered.
func TestARememberedDenialIsTheServers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		den := rapid.Int64Range(1, 7).Draw(t, "den")
		span := func(name string, most int64) store.Span {
			return store.Span{Micros: rapid.Int64Range(0, most).Draw(t, name), Frac: rapid.Int64Range(0, den-1).Draw(t, name+" fraction")}
		}
		capacity := span("capacity", 1000)
		debt := span("debt", capacity.Micros)
		asked := rapid.Int64Range(0, 1000).Draw(t, "asked")
		made := asked + rapid.Int64Range(0, 500).Draw(t, "way there")
		heard := made + rapid.Int64Range(0, 500).Draw(t, "way back")
		now := heard + rapid.Int64Range(0, 2000).Draw(t, "later")
		d := denial{charges: []store.Charge{{Capacity: capacity, Den: den}}, debts: store.OneDebt(debt), asked: asked, heard: heard}

		c := store.Charge{Cost: span("cost", 1000), Capacity: capacity, Den: den}
		there := store.Level{Empties: store.Span{Micros: made + debt.Micros, Frac: debt.Frac}, Den: den}.Debt(now, &c)
		_, allowed := c.Charged(there)
		if allowed && d.holdsFor([]store.Charge{c}, now) {
			t.Errorf("denied, but it would leave %v of %v", there, capacity)
		}
		if told := d.debtsAt(now); there.Exceeds(told.At(0)) {
			t.Errorf("told that %v are owed, of %v", told.At(0), there)
		}
		other := c
		other.Capacity.Micros++
		if d.holdsFor([]store.Charge{other}, now) {
			t.Error("it holds for another plan")
		}
	})
}

// A denial that was under way when its key was reset says nothing of what is now.
func TestADenialOnItsWayIsForgotten(t *testing.T) {
	var d denials
	d.init()
	defer d.stop()
	hour := store.Span{Micros: 3_600_000_000}
	charges := []store.Charge{{Cost: hour, Capacity: hour, Den: 1}}
	denied := store.TakeReply{Debts: store.OneDebt(hour)}
	_, q, _ := d.recall("api", "k", charges)
	d.forget("api", "k")
	q.remember("api", "k", charges, &denied)
	_, q, known := d.recall("api", "k", charges)
	if known {
		t.Fatal("it is remembered")
	}
	q.remember("api", "k", charges, &denied)
	if _, _, known := d.recall("api", "k", charges); !known {
		t.Error("the next one is not remembered")
	}
	_, q, _ = d.recall("api", "allowed", charges)
	q.remember("api", "allowed", charges, &store.TakeReply{Allowed: true, Debts: store.OneDebt(hour)})
	if _, _, known := d.recall("api", "allowed", charges); known {
		t.Error("what was allowed is remembered")
	}
}

func TestSoManyDenialsAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // nothing expires, however slow the machine is
		var d denials
		d.init()
		defer d.stop()
		hour := store.Span{Micros: 3_600_000_000}
		charges := []store.Charge{{Cost: hour, Capacity: hour, Den: 1}}
		for i := range 100_000 {
			key := fmt.Sprint(i)
			_, q, _ := d.recall("api", key, charges)
			q.remember("api", key, charges, &store.TakeReply{Debts: store.OneDebt(hour)})
		}
		n := 0
		for i := range d.shards {
			n += d.shards[i].table.Len()
		}
		if n < 60_000 || n > denialShards*denialsPerShard {
			t.Errorf("%d are remembered", n)
		}
	})
}
