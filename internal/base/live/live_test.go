package live

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

func TestACounterThatIsNotStarted(t *testing.T) {
	for _, c := range []*Counter{nil, {}} {
		c.Count(Passed)
		c.Took(time.Second)
		c.Waits().End()
		c.Holds(3).End()
		c.Step()
		if c.Measures() {
			t.Error("it measures")
		}
		if r, ok := c.Read(); ok {
			t.Errorf("it has %+v", r)
		}
	}
}

func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Counter
		c.Start()
		defer c.Stop()
		counted := 0
		for slot := range 2 * Slots {
			for range slot {
				c.Count(Denied)
			}
			counted += slot
			time.Sleep(SlotLength)
			c.Step()
			c.Step() // another reader's
		}
		c.Count(Denied)
		r, _ := c.Read()
		if len(r.Slots) != Slots+1 || r.Open != 0 {
			t.Fatalf("%d slots, and the open one began %v ago", len(r.Slots), r.Open)
		}
		for i, slot := range r.Slots[:Slots] {
			if slot.Counts[Denied] != uint32(Slots+i) {
				t.Errorf("slot %d has %d denials, want %d", i, slot.Counts[Denied], Slots+i)
			}
		}
		if last := r.Slots[Slots]; last.Counts[Denied] != 1 || r.Totals[Denied] != uint64(counted)+1 {
			t.Errorf("%d in the open slot and %d in all, want 1 and %d", last.Counts[Denied], r.Totals[Denied], counted+1)
		}
	})
}

func TestALateStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Counter
		c.Start()
		defer c.Stop()
		c.Count(Passed)
		time.Sleep(3*SlotLength + time.Second)
		r, _ := c.Read()
		if len(r.Slots) != 4 || r.Slots[0].Counts[Passed] != 1 || r.Slots[3] != (Slot{}) || r.Open != time.Second {
			t.Errorf("%+v", r)
		}
		time.Sleep(2 * Slots * SlotLength)
		if r, _ := c.Read(); len(r.Slots) != Slots+1 || r.Totals[Passed] != 1 {
			t.Errorf("%d slots, %d in all", len(r.Slots), r.Totals[Passed])
		}
	})
}

func TestLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Counter
		before := c.Holds(7) // not counted, so its end is not either
		c.Start()
		a, b := c.Holds(2), c.Holds(3)
		before.End()
		a.End()
		w := c.Waits()
		time.Sleep(SlotLength)
		c.Step()
		w.End()
		r, _ := c.Read()
		if r.Slots[0].Held != 5 || r.Slots[0].Waiting != 1 || r.Slots[1].Held != 3 || r.Held != 3 || r.Waiting != 0 {
			t.Errorf("%+v", r)
		}
		time.Sleep(2 * SlotLength)
		c.Step()
		if r, _ := c.Read(); r.Slots[1].Waiting != 1 || r.Slots[2].Waiting != 0 {
			t.Errorf("waiting %d and %d: the most of a slot includes its beginning", r.Slots[1].Waiting, r.Slots[2].Waiting)
		}
		c.Stop()
		b.End() // of a series that was dropped
		c.Start()
		defer c.Stop()
		if r, _ := c.Read(); r.Held != 0 {
			t.Errorf("held %d in a new series", r.Held)
		}
	})
}

func TestPercentiles(t *testing.T) {
	var c Counter
	c.Start()
	defer c.Stop()
	if r, _ := c.Read(); r.Slots != nil {
		if _, ok := Percentile(0.5, r.Slots...); ok {
			t.Error("a percentile of nothing")
		}
	}
	for range 200_000 { // more than a bucket of a slot can count
		c.Took(2 * time.Millisecond)
	}
	for range 4_000 {
		c.Took(2 * time.Second)
	}
	c.Took(time.Hour)
	r, _ := c.Read()
	for p, want := range map[float64]time.Duration{
		0.5: 3 * time.Millisecond, 0.97: 3 * time.Millisecond, 0.99: 3 * time.Second,
	} {
		if got, ok := Percentile(p, r.Slots...); !ok || got != want {
			t.Errorf("percentile %v is %v, want %v", p, got, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	var (
		c       Counter
		running sync.WaitGroup
	)
	c.Start()
	defer c.Stop()
	for range 8 {
		running.Go(func() {
			for range 1_000 {
				hold := c.Holds(1)
				c.Count(Passed)
				c.Step()
				hold.End()
			}
		})
	}
	running.Wait()
	r, _ := c.Read()
	if r.Totals[Passed] != 8_000 || r.Held != 0 {
		t.Errorf("%d counted, %d held", r.Totals[Passed], r.Held)
	}
	sum := uint64(0)
	for _, slot := range r.Slots {
		sum += uint64(slot.Counts[Passed])
	}
	if sum != 8_000 {
		t.Errorf("the slots have %d", sum)
	}
}

func TestTheSizeOfARing(t *testing.T) {
	if size := Slots * unsafe.Sizeof(Slot{}); size > 8<<10 {
		t.Errorf("%d bytes for each mechanism", size)
	}
}

func TestAllocations(t *testing.T) {
	var c Counter
	c.Start()
	defer c.Stop()
	if n := testing.AllocsPerRun(1_000, func() {
		c.Count(Passed)
		if c.Measures() {
			c.Took(time.Microsecond)
		}
		c.Holds(1).End()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkCount(b *testing.B) {
	for _, started := range []bool{false, true} {
		b.Run(map[bool]string{false: "off", true: "on"}[started], func(b *testing.B) {
			var c Counter
			if started {
				c.Start()
				defer c.Stop()
			}
			for b.Loop() {
				if c.Measures() {
					c.Took(time.Microsecond)
				}
				c.Count(Passed)
			}
		})
	}
}
