// Package overload measures the cost of a gate, and the goodput behind it under overload.
package overload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The targets.
const (
	underRule = "rules, a decision in memory: under a rule, of that without"
	exactly   = "rules, a decision in memory: a key of 10,000 with plans of their own, more than without"
	byPrefix  = "rules, a decision in memory: beside 10,000 such keys, a key whose prefix has a plan, more than without"
	allocates = "rules, a decision in memory: allocations, the most of all rows"
	adapting  = "overload, a permit in memory: adaptive capacity, more than a fixed one"
	served    = "overload, 3 × over HTTP: goodput of the adaptive capacity, of the best static bound's"
	highTier  = "overload, 3 × over HTTP: high goodput of the adaptive capacity, of the best static bound's"
	besides   = "overload, 3 × over HTTP: goodput of the adaptive capacity, of the better of failsafe-go's limiters"
)

// Sections are the measurements of overload.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "rules",
		Title: "Rules of limits, and an adaptive capacity: their cost",
		About: "What a decision in memory costs more if keys have plans of their own or a limit is enforced for a share of them, and what a " +
			"permit in memory costs more if its capacity adapts. One goroutine calls.",
		Full: 60 * time.Second,
		Run: func(ctx context.Context, b *bench.B) error {
			return errors.Join(decisions(ctx, b), permits(ctx, b))
		},
		Targets: []bench.Target{
			{What: underRule, Bound: 103, Better: bench.Less, Unit: "%"},
			{What: exactly, Bound: 60, Better: bench.Less, Unit: "ns"},
			{What: byPrefix, Bound: 120, Better: bench.Less, Unit: "ns"},
			{What: allocates, Bound: 0, Better: bench.Less},
			{What: adapting, Bound: 100, Better: bench.Less, Unit: "ns"},
		},
	}, {
		Name:  "overload",
		Title: "Three times as many requests as can be served",
		About: fmt.Sprintf("A service of %d workers, each of which takes %v for a request, gets %.0f requests a second over HTTP, half of which "+
			"are of low priority. Clients leave after %v, and the work is done all the same. Goodput is what is answered before that.",
			workers, work, rate, patience),
		Full: 540 * time.Second,
		Run:  goodput,
		Targets: []bench.Target{
			{What: served, Bound: 95, Better: bench.More, Unit: "%"},
			{What: highTier, Bound: 95, Better: bench.More, Unit: "%"},
			{What: besides, Bound: 98, Better: bench.More, Unit: "%",
				Floor: "that of failsafe-go, less the 2 % by which two runs of the same gate may differ"},
		},
	}}
}

// The keys: decisions are about some of them, and all of them may have plans.
const decided, known = 1000, 10_000

func keyOf(kind string, i int) string { return fmt.Sprintf("%s-%05d", kind, i) }

// plan never denies.
var plan = tokenbucket.PerSecond(1e6).Burst(1e9)

// overrides gives plans to all keys of a kind, and to these prefixes.
func overrides(kind string, prefixes ...string) tokenbucket.Plan {
	by := make(map[string]tokenbucket.Plan)
	for i := range known {
		by[keyOf(kind, i)] = plan
	}
	for _, p := range prefixes {
		by[p+"*"] = plan
	}
	return tokenbucket.Overrides(plan, by)
}

// decisions measures decisions by rules of all kinds.
func decisions(ctx context.Context, b *bench.B) error {
	const took, allocations = "time", "allocations"
	t := b.Table("rules-decisions", "A decision in memory", "All requests are allowed. The plans are equal, so only finding them differs.",
		bench.Column{Name: took, Unit: "ns", Better: bench.Less},
		bench.Column{Name: allocations, Unit: "per decision", Better: bench.Less, Format: "%.2f"})
	var lengths []string // one of them matches
	for n := range 15 {
		lengths = append(lengths, "customer-number-"[:n+1]+"!")
	}
	share := fmt.Sprintf("%d other keys have plans of their own, and 16 prefixes, of which the shortest is the key's", known)
	rows := []struct {
		name string
		rule tokenbucket.Rule
	}{
		{"one plan", tokenbucket.Rule{}},
		{"one plan, by a rule", tokenbucket.Rule{Plan: plan}},
		{fmt.Sprintf("the key is one of %d with plans of their own", known), tokenbucket.Rule{Plan: overrides("customer-number")}},
		{fmt.Sprintf("%d other keys have plans of their own", known), tokenbucket.Rule{Plan: overrides("team")}},
		{fmt.Sprintf("%d other keys have plans of their own, and the key's prefix has", known), tokenbucket.Rule{Plan: overrides("team", "customer-")}},
		{share, tokenbucket.Rule{Plan: overrides("team", append(lengths, "c")...)}},
		{"one plan, enforced for 10 % of the keys", tokenbucket.Rule{Plan: plan, Enforcement: tokenbucket.Enforcement{Share: 0.1}}},
	}
	keys := make([]string, decided)
	for i := range keys {
		keys[i] = keyOf("customer-number", i)
	}
	var all []bench.Contender
	for i, row := range rows {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		l, err := tokenbucket.New(st, "api-"+strconv.Itoa(i), plan)
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		if row.rule.Plan != nil {
			if err := l.SetRule(row.rule); err != nil {
				return err
			}
		}
		call := func(worker, i int) error {
			_, err := l.Allow(ctx, keys[bench.Pick(worker, i, decided)])
			return err
		}
		bench.Spin(ctx, 1, b.Time(100*time.Millisecond), call) // makes the buckets
		all = append(all, bench.Contender{Row: row.name, Run: func(ctx context.Context) error {
			r := bench.Spin(ctx, 1, b.Time(2*time.Second), call)
			t.Add(row.name, took, r.NsPerCall)
			t.Add(row.name, allocations, r.AllocsPerOp)
			return r.Err
		}})
	}
	if err := b.InterleaveFinely(ctx, "rules, decisions in memory", bench.PartsOfCalls, all); err != nil {
		return err
	}
	more := func(i int) float64 { return t.Value(rows[i].name, took) - t.Value(rows[0].name, took) }
	b.Measured(underRule, 100*t.PairedRatio(took, rows[1].name, rows[0].name))
	b.Measured(exactly, more(2))
	b.Measured(byPrefix, more(4))
	most := 0.0
	for _, row := range rows {
		most = max(most, t.Value(row.name, allocations))
	}
	b.Measured(allocates, float64(int(most*100))/100) // what runs in the background allocates, too
	return nil
}

// permits measures a permit that is acquired and released.
func permits(ctx context.Context, b *bench.B) error {
	const took, allocations = "acquire and release", "allocations"
	t := b.Table("rules-permits", "A permit in memory", "There are enough permits, so the adaptive capacity does not change.",
		bench.Column{Name: took, Unit: "ns", Better: bench.Less},
		bench.Column{Name: allocations, Unit: "per permit", Better: bench.Less, Format: "%.2f"})
	const fixed, adaptive = "fixed capacity", "adaptive capacity"
	var all []bench.Contender
	for row, opts := range map[string][]semaphore.Option{
		fixed: nil, adaptive: {semaphore.WithAdaptiveCapacity(time.Second, 100, 1000)},
	} {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		sem, err := semaphore.New(st, "gate", 100, opts...)
		if err != nil {
			return err
		}
		defer func() { _ = sem.Close() }()
		call := func(int, int) error {
			permit, err := sem.TryAcquire(ctx, "global")
			if err != nil {
				return err
			}
			return permit.Release(ctx)
		}
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			r := bench.Spin(ctx, 1, b.Time(2*time.Second), call)
			t.Add(row, took, r.NsPerCall)
			t.Add(row, allocations, r.AllocsPerOp)
			return r.Err
		}})
	}
	if err := b.InterleaveFinely(ctx, "rules, permits in memory", bench.PartsOfCalls, all); err != nil {
		return err
	}
	t.Order(fixed, adaptive)
	b.Measured(adapting, t.Value(fixed, took)*(t.PairedRatio(took, adaptive, fixed)-1))
	return nil
}
