package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

type byKey = map[string]tokenbucket.Plan

// capacities returns the capacities of a key's limits.
func capacities(t testing.TB, l *tokenbucket.Limiter, key string) string {
	t.Helper()
	var list []string
	for _, limit := range must(l.Peek(t.Context(), key)).Limits() {
		list = append(list, fmt.Sprint(limit.Capacity))
	}
	return strings.Join(list, " ")
}

func TestOverridesOfKeys(t *testing.T) {
	by := byKey{
		"team-7": tokenbucket.PerHour(7), "team-*": tokenbucket.Limits{tokenbucket.PerHour(70), tokenbucket.PerDay(700)},
		"team-70*": tokenbucket.PerHour(77), "probe": tokenbucket.Unlimited(), "a*b": tokenbucket.PerHour(9),
	}
	asked := 0
	chosen := tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
		if asked++; key == "lost" {
			return nil, errors.New("no plan")
		}
		return tokenbucket.PerHour(1), nil
	})
	bases := byKey{"a limit": tokenbucket.PerHour(1), "a PlanFunc": chosen, "Cached": tokenbucket.Cached(chosen, time.Hour, 10)}
	for name, base := range bases {
		asked = 0
		plan := tokenbucket.Overrides(base, by)
		l, _ := newLimiter(t, plan)
		for key, want := range map[string]string{"team-7": "7", "team-8": "70 700", "team-701": "77", "probe": "", "a*b": "9"} {
			if got := capacities(t, l, key); got != want {
				t.Errorf("%s: %s has limits of %q, want %q", name, key, got, want)
			}
		}
		if asked > 0 {
			t.Errorf("%s: the PlanFunc was called for a key that has its plan", name)
		}
		for _, key := range []string{"axb", "team", "probe-2"} {
			if got := capacities(t, l, key); got != "1" {
				t.Errorf("%s: %s has limits of %q", name, key, got)
			}
		}
		if l.FixedPlan() != (name == "a limit") {
			t.Errorf("%s: FixedPlan is %v", name, l.FixedPlan())
		}
		if _, err := l.Allow(t.Context(), "lost"); (err != nil) != (name != "a limit") {
			t.Errorf("%s: %v", name, err)
		}
	}
	delete(by, "team-7") // a copy was kept
	l, _ := newLimiter(t, tokenbucket.Overrides(tokenbucket.PerHour(1), by))
	if got := capacities(t, l, "team-7"); got != "70 700" {
		t.Errorf("team-7 has limits of %q", got)
	}
}

func TestOverridesOfOverridesTakeTheirPlace(t *testing.T) {
	plan := tokenbucket.Overrides(tokenbucket.PerHour(1), byKey{"a": tokenbucket.PerHour(2), "b*": tokenbucket.PerHour(3)})
	l, _ := newLimiter(t, tokenbucket.Overrides(plan, byKey{"c": tokenbucket.PerHour(4)}))
	for key, want := range map[string]string{"a": "1", "b": "1", "c": "4"} {
		if got := capacities(t, l, key); got != want {
			t.Errorf("%s has limits of %q, want %q", key, got, want)
		}
	}
}

// Used tokens stay used when a key gets an override, or loses it.
func TestOverridesKeepUsedTokens(t *testing.T) {
	l, _ := newLimiter(t, tokenbucket.PerDay(10))
	if d := must(l.AllowN(t.Context(), "k", 10)); !d.Allowed {
		t.Fatal(d)
	}
	left := func(want int64) {
		t.Helper()
		if d := must(l.Peek(t.Context(), "k")); d.Limits()[0].Remaining != want {
			t.Errorf("%d are left, want %d", d.Limits()[0].Remaining, want)
		}
	}
	left(0)
	ok(t, l.SetPlan(tokenbucket.Overrides(tokenbucket.PerDay(10), byKey{"k*": tokenbucket.PerDay(100)})))
	left(90)
	ok(t, l.SetPlan(tokenbucket.PerDay(10)))
	left(0)
}

// A reservation is settled by the present plan of its own key.
func TestOverridesSettle(t *testing.T) {
	plan := func(mine int64) tokenbucket.Plan {
		return tokenbucket.Overrides(tokenbucket.PerDay(10), byKey{"mine": tokenbucket.PerDay(mine)})
	}
	l, _ := newLimiter(t, plan(1000))
	r := must(l.Reserve(t.Context(), "mine", tokenbucket.Cost{"api": 500}))
	ok(t, l.SetPlan(plan(2000)))
	ok(t, r.Use("api", 100))
	ok(t, r.Settle(t.Context()))
	if d := must(l.Peek(t.Context(), "mine")); d.Limits()[0].Remaining != 1900 || d.Limits()[0].Capacity != 2000 {
		t.Errorf("%+v", d.Limits())
	}
}

func TestOverridesRefused(t *testing.T) {
	const secret = "alice@example.com"
	limit := tokenbucket.PerHour(1)
	chosen := tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return limit, nil })
	lengths := byKey{}
	for i := range 17 {
		lengths[strings.Repeat("p", i+1)+"*"] = limit
	}
	for name, c := range map[string]struct {
		plan tokenbucket.Plan
		want string
	}{
		"nil base":             {tokenbucket.Overrides(nil, byKey{secret: limit}), "Overrides: nil base"},
		"a base without sense": {tokenbucket.Overrides(tokenbucket.PerHour(0), nil), "0"},
		"no function as base":  {tokenbucket.Overrides(tokenbucket.PlanFunc(nil), nil), "nil PlanFunc"},
		"an empty key":         {tokenbucket.Overrides(limit, byKey{"": limit, secret: limit}), "Overrides: pattern 1 of 2 in byte order: key is empty"},
		"an asterisk":          {tokenbucket.Overrides(limit, byKey{"*": limit}), `pattern "*"`},
		"a long key":           {tokenbucket.Overrides(limit, byKey{secret + strings.Repeat("k", 1025): limit}), "pattern 1 of 1"},
		"17 lengths":           {tokenbucket.Overrides(limit, lengths), "more than 16 lengths"},
		"nil":                  {tokenbucket.Overrides(limit, byKey{"a": limit, secret: nil}), "pattern 2 of 2 in byte order: nil plan"},
		"a PlanFunc":           {tokenbucket.Overrides(limit, byKey{"team-*": chosen}), `pattern "team-*": a PlanFunc`},
		"Cached":               {tokenbucket.Overrides(limit, byKey{secret: tokenbucket.Cached(chosen, time.Hour, 1)}), "is no plan of one key"},
		"Overrides":            {tokenbucket.Overrides(limit, byKey{secret: tokenbucket.Overrides(limit, nil)}), "is no plan of one key"},
		"a limit of nothing":   {tokenbucket.Overrides(limit, byKey{secret: tokenbucket.PerHour(0)}), "tokenbucket: Overrides: pattern 1 of 1 in byte order"},
		"no limits":            {tokenbucket.Overrides(limit, byKey{"team-*": tokenbucket.Limits{}}), "no limits"},
	} {
		l, _ := newLimiter(t, limit)
		err := l.SetPlan(c.plan)
		if !errors.Is(err, tokenbucket.ErrInvalidLimit) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
		if got := capacities(t, l, secret); got != "1" {
			t.Errorf("%s: the plan has changed: %q", name, got)
		}
	}
	returned := tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return tokenbucket.Overrides(limit, nil), nil })
	l, _ := newLimiter(t, returned)
	if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, tokenbucket.ErrInvalidLimit) {
		t.Errorf("a PlanFunc that returns Overrides: %v", err)
	}
}

// Limiters of one name are compared by their overrides, whose keys are not shown.
func TestSettingsOfOverrides(t *testing.T) {
	settings := func(by byKey) string {
		st := memstore.New()
		must(tokenbucket.New(st, "api", tokenbucket.Overrides(tokenbucket.PerMinute(100), by)))
		return inspect.Mechanisms(st)[0].Settings
	}
	one := byKey{"alice": tokenbucket.PerMinute(7), "bob-*": tokenbucket.PerMinute(8)}
	same := settings(one)
	for range 20 {
		if got := settings(byKey{"bob-*": tokenbucket.PerMinute(8), "alice": tokenbucket.PerMinute(7).Burst(7)}); got != same {
			t.Fatalf("%q and %q", got, same)
		}
	}
	if !strings.HasPrefix(same, "100/1m, 2 overrides ") || strings.Contains(same, "alice") {
		t.Errorf("%q", same)
	}
	for _, other := range []byKey{
		{"alice": tokenbucket.PerMinute(8), "bob-*": tokenbucket.PerMinute(7)}, {"alice": tokenbucket.PerMinute(7), "bob-": tokenbucket.PerMinute(8)},
	} {
		if got := settings(other); got == same {
			t.Errorf("%v: %q", other, got)
		}
	}
}

// many are overrides of 10,000 keys, and of prefixes of 16 lengths.
func many() byKey {
	by := byKey{}
	for i := range 10_000 {
		by[fmt.Sprintf("tenant-%05d", i)] = tokenbucket.PerMinute(int64(1000 + i%10)).Burst(1e8)
	}
	for i := range 16 {
		by[fmt.Sprintf("p-%0*d-*", i+1, 0)] = tokenbucket.PerMinute(100).Burst(1e8)
	}
	return by
}

// An override costs no allocation.
func TestOverridesAllocate(t *testing.T) {
	limit := tokenbucket.PerMinute(100).Burst(1e8)
	l := must(tokenbucket.New(memstore.New(), "api", tokenbucket.Overrides(limit, many())))
	plain := must(tokenbucket.New(memstore.New(), "api", limit))
	ctx := t.Context()
	for _, key := range []string{"tenant-04711", "p-0-x", "someone"} {
		want := testing.AllocsPerRun(1000, func() { _, _ = plain.Allow(ctx, key) })
		if got := testing.AllocsPerRun(1000, func() { _, _ = l.Allow(ctx, key) }); got > want {
			t.Errorf("%s: %v allocations, want %v", key, got, want)
		}
	}
}

func BenchmarkOverrides(b *testing.B) {
	limit := tokenbucket.PerMinute(100).Burst(1e8)
	overrides := must(tokenbucket.New(memstore.New(), "api", tokenbucket.Overrides(limit, many())))
	plain := must(tokenbucket.New(memstore.New(), "api", limit))
	for _, c := range []struct {
		name string
		l    *tokenbucket.Limiter
		key  string
	}{
		{"none", plain, "tenant-04711"}, {"exact", overrides, "tenant-04711"}, {"prefix", overrides, "p-0-somebody"}, {"others", overrides, "somebody-else"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.l.Allow(b.Context(), c.key)
			}
		})
	}
	b.Run("compile", func(b *testing.B) {
		by := many()
		for b.Loop() {
			_ = plain.SetPlan(tokenbucket.Overrides(limit, by))
		}
	})
}

// Each key is limited by its own plan.
func TestOverridesDoNotMeet(t *testing.T) {
	l, st := newLimiter(t, tokenbucket.Overrides(tokenbucket.PerHour(1), byKey{"b": tokenbucket.PerHour(2)}))
	for key, want := range map[string]int{"a": 1, "b": 2, "c": 1} {
		allowed := 0
		for range 4 {
			if must(l.Allow(t.Context(), key)).Allowed {
				allowed++
			}
		}
		if allowed != want {
			t.Errorf("%s: %d allowed, want %d", key, allowed, want)
		}
	}
	if st.Calls(storetest.TakeTokens) != 12 {
		t.Errorf("%d calls", st.Calls(storetest.TakeTokens))
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
