package semaphore_test

import (
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

var halves = semaphore.TierShares{Normal: 0.5, Low: 0.5, Background: 0.5}

// adaptingTo returns a semaphore with an adaptive capacity.
func adaptingTo(t *testing.T, st store.Leases, floor, ceiling int) *semaphore.Semaphore {
	t.Helper()
	return newSemaphore(t, st, floor, semaphore.WithAdaptiveCapacity(time.Second, floor, ceiling))
}

// A rule is in force as a whole, or not at all, and what Rule returns can be set again.
func TestSetRule(t *testing.T) {
	st, other := memstore.New(), memstore.New()
	defer st.Close()
	defer other.Close()
	tiers := semaphore.TierShares{Normal: 0.9, Low: 0.7, Background: 0.5}
	by := map[string]int{"acme": 16, "trial-*": 1}
	for name, c := range map[string]struct {
		s         *semaphore.Semaphore
		first     semaphore.Rule
		good, bad []semaphore.Rule
	}{
		"fixed": {
			newSemaphore(t, st, 4), semaphore.Rule{Capacity: 4, Tiers: tiers},
			[]semaphore.Rule{{Capacity: 3, ByKey: by, Tiers: halves}, {Capacity: 5, Tiers: tiers, Off: true}, {Capacity: 1, ByKey: map[string]int{"k": 2}, Tiers: tiers}},
			[]semaphore.Rule{
				{}, {Capacity: 3}, {Tiers: halves}, {Capacity: 3, ByKey: map[string]int{"k": 0}, Tiers: halves}, {Capacity: store.MaxCapacity + 1, Tiers: halves},
				{Capacity: 3, Tiers: semaphore.TierShares{Normal: 0.5, Low: 0.6, Background: 0.5}}, {Target: 1, Floor: 1, Ceiling: 2, Tiers: halves},
				{Capacity: 3, Floor: 1, Tiers: halves},
			},
		},
		"adaptive": {
			adaptingTo(t, other, 4, 8), semaphore.Rule{Target: time.Second, Floor: 4, Ceiling: 8, Tiers: tiers},
			[]semaphore.Rule{{Target: time.Minute, Floor: 2, Ceiling: 3, Tiers: halves}, {Target: time.Second, Floor: 9, Ceiling: 9, Tiers: tiers, Off: true}},
			[]semaphore.Rule{
				{}, {Target: 1, Floor: 1, Ceiling: 2}, {Floor: 1, Ceiling: 2, Tiers: halves}, {Target: 1, Floor: 2, Ceiling: 1, Tiers: halves},
				{Capacity: 3, Tiers: halves}, {Target: 1, Floor: 1, Ceiling: 2, Tiers: halves, ByKey: by},
			},
		},
	} {
		is := func(want semaphore.Rule) {
			t.Helper()
			if got := c.s.Rule(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %+v, want %+v", name, got, want)
			}
		}
		is(c.first)
		for _, want := range c.good {
			set := must(c.s.PrepareRule(want))
			is(c.first)
			set()
			is(want)
			for _, r := range c.bad {
				if err := c.s.SetRule(r); err == nil {
					t.Errorf("%s: %+v is accepted", name, r)
				}
			}
			is(want)
			ok(t, c.s.SetRule(c.first))
			is(c.first)
		}
	}
}

// A semaphore that is off refuses nothing, and is as before when it is on again.
func TestOff(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2, semaphore.WithCapacityFunc(func(key string) int { return map[string]int{"one": 1}[key] }))
		low := s.Tier(semaphore.Low)
		set := func(off bool) {
			t.Helper()
			r := s.Rule()
			r.Off = off
			ok(t, s.SetRule(r))
		}
		held := []*semaphore.Permit{mustAcquire(t, s, 2)}
		calls := []*pending{start(t.Context(), s, 1), start(t.Context(), s, 2), start(t.Context(), low, 1)}
		wantGot(t, calls)
		set(true)
		wantGot(t, calls, 0, 1, 2)
		wantCapacities(t, s, map[string]int{"k": store.MaxCapacity, "one": store.MaxCapacity})
		held = append(held, mustAcquire(t, low, 1000), must(s.TryAcquireN(t.Context(), "one", 7)))
		set(false)
		wantCapacities(t, s, map[string]int{"k": 2, "one": 1})
		late := start(t.Context(), s, 1)
		for _, p := range append(held, calls[0].permit, calls[1].permit) {
			if late.returned() {
				t.Fatal("a request is granted beyond the capacity")
			}
			mustRelease(t, p)
		}
		wantGot(t, []*pending{late}, 0) // beside the one of low
		mustRelease(t, calls[2].permit, late.permit)
	})
}

// The capacity neither grows nor falls by what happens while the semaphore is off.
func TestOffWithAnAdaptiveCapacity(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *wiretap) {
		st := memstore.New()
		defer st.Close()
		s := adaptingTo(t, st, 10, 1000)
		work := func(n int, each time.Duration) (refused int) {
			t.Helper()
			var permits []*semaphore.Permit
			for range n {
				p, err := s.TryAcquire(t.Context(), "k")
				if err != nil {
					refused++
					continue
				}
				permits = append(permits, p)
			}
			time.Sleep(each)
			mustRelease(t, permits...)
			return refused
		}
		for range 10 {
			work(40, 300*time.Millisecond)
		}
		before := must(s.Capacity("k"))
		if before < 12 || before > 20 {
			t.Fatalf("the capacity is %d", before)
		}
		rule := s.Rule()
		for _, each := range []time.Duration{300 * time.Millisecond, 5 * time.Second} {
			rule.Off = true
			ok(t, s.SetRule(rule))
			for range 10 {
				if refused := work(2000, each); refused > 0 {
					t.Errorf("%d are refused while it is off", refused)
				}
			}
			rule.Off = false
			ok(t, s.SetRule(rule))
			if got := must(s.Capacity("k")); got != before {
				t.Errorf("the capacity is %d, want %d as before", got, before)
			}
		}
		work(40, 300*time.Millisecond)
		work(40, 300*time.Millisecond)
		if got := must(s.Capacity("k")); got <= before {
			t.Errorf("the capacity is %d, and does not grow any more", got)
		}
	})
}

// Each request is weighed by one rule: a tenth of 10, or half of 2, but not half of 10.
func TestRulesChangeBesideRequests(t *testing.T) {
	changes := 100_000
	if testing.Short() {
		changes = 10_000
	}
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 2)
	tenth := semaphore.TierShares{Normal: 0.1, Low: 0.1, Background: 0.1}
	rules := []semaphore.Rule{
		{Capacity: 10, Tiers: tenth}, {Capacity: 2, Tiers: halves},
		{Capacity: 1, ByKey: map[string]int{"k*": 10}, Tiers: tenth}, {Capacity: 10, ByKey: map[string]int{"k": 2}, Tiers: halves},
	}
	ok(t, s.SetRule(rules[0]))
	var done atomic.Bool
	var workers sync.WaitGroup
	for range 3 {
		workers.Go(func() {
			low := s.Tier(semaphore.Low)
			for !done.Load() {
				p, err := low.TryAcquire(t.Context(), "k")
				switch {
				case err == nil:
					ok(t, p.Release(t.Context()))
				case !errors.Is(err, semaphore.ErrNotAcquired):
					t.Errorf("1: %v", err)
					return
				}
				if _, err := low.TryAcquireN(t.Context(), "k", 2); !errors.Is(err, semaphore.ErrInvalidWeight) {
					t.Errorf("2: %v", err)
					return
				}
			}
		})
	}
	for n := range changes {
		ok(t, s.SetRule(rules[n%len(rules)]))
	}
	done.Store(true)
	workers.Wait()
	if state := must(s.Inspect(t.Context(), "k")); state.InUse != 0 || state.Waiting != 0 {
		t.Errorf("left: %+v", state)
	}
}
