package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A rule is in force as a whole, or not at all.
func TestSetRule(t *testing.T) {
	l, st := newLimiter(t, tokenbucket.PerDay(1))
	ok(t, l.SetRule(tokenbucket.Rule{Plan: tokenbucket.PerDay(3), Enforcement: inShadow, Candidate: tokenbucket.PerDay(2)}))
	for name, c := range map[string]struct {
		rule tokenbucket.Rule
		want error
	}{
		"no plan":                   {tokenbucket.Rule{}, tokenbucket.ErrInvalidLimit},
		"a plan without sense":      {tokenbucket.Rule{Plan: tokenbucket.PerDay(0)}, tokenbucket.ErrInvalidLimit},
		"a share of nothing":        {tokenbucket.Rule{Plan: tokenbucket.PerDay(9), Enforcement: tokenbucket.Enforcement{Share: math.NaN()}}, tokenbucket.ErrInvalidEnforcement},
		"a candidate without sense": {tokenbucket.Rule{Plan: tokenbucket.PerDay(9), Candidate: tokenbucket.Limits{}}, tokenbucket.ErrInvalidLimit},
	} {
		if err := l.SetRule(c.rule); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		before := st.Calls(storetest.TakeTokens)
		d := must(l.AllowN(t.Context(), name, 4))
		if got := st.Calls(storetest.TakeTokens) - before; l.Enforcement() != inShadow || !d.Shadow || capacities(t, l, name) != "3" || got != 0 {
			t.Errorf("%s: it has changed: %+v, %+v, %d calls", name, l.Enforcement(), d, got)
		}
		_ = must(l.Allow(t.Context(), name))
		if got := st.Calls(storetest.TakeTokens) - before; got != 3 { // with that of Peek, and the candidate's
			t.Errorf("%s: %d calls", name, got)
		}
	}
	ok(t, l.SetRule(tokenbucket.Rule{Plan: tokenbucket.PerDay(1)}))
	before := st.Calls(storetest.TakeTokens)
	if d := must(l.Allow(t.Context(), "a share of nothing")); d.Allowed || !d.Enforced() || st.Calls(storetest.TakeTokens) != before+1 {
		t.Errorf("%+v", d)
	}
	ok(t, l.Close())
	if err := l.SetRule(tokenbucket.Rule{Plan: tokenbucket.PerDay(1)}); !errors.Is(err, tokenbucket.ErrClosed) {
		t.Error(err)
	}
	if err := l.SetCandidate(nil); !errors.Is(err, tokenbucket.ErrClosed) {
		t.Error(err)
	}
}

func TestPrepareRule(t *testing.T) {
	l, _ := newLimiter(t, tokenbucket.PerDay(1))
	set := must(l.PrepareRule(tokenbucket.Rule{Plan: tokenbucket.PerDay(3), Candidate: tokenbucket.PerDay(2)}))
	if _, err := l.PrepareRule(tokenbucket.Rule{Plan: tokenbucket.PerDay(0)}); !errors.Is(err, tokenbucket.ErrInvalidLimit) {
		t.Error(err)
	}
	if got := l.Rule(); got.Plan != tokenbucket.PerDay(1) || got.Candidate != nil {
		t.Errorf("it is in force before it is set: %+v", got)
	}
	for range 2 {
		ok(t, set())
		if got := l.Rule(); got.Plan != tokenbucket.PerDay(3) || got.Candidate != tokenbucket.PerDay(2) {
			t.Errorf("it is not in force: %+v", got)
		}
		ok(t, l.SetPlan(tokenbucket.PerDay(1)))
	}
	ok(t, l.Close())
	if err := set(); !errors.Is(err, tokenbucket.ErrClosed) {
		t.Error(err)
	}
}

// What Rule returns can be set again.
func TestRule(t *testing.T) {
	chosen := tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return tokenbucket.PerDay(1), nil })
	limits := tokenbucket.Limits{tokenbucket.PerDay(9), tokenbucket.PerHour(3)}
	for _, want := range []tokenbucket.Rule{
		{Plan: tokenbucket.PerDay(1), Enforcement: tokenbucket.Enforcement{Share: 1}},
		{Plan: limits, Enforcement: inShadow, Candidate: tokenbucket.PerDay(2)},
		{Plan: tokenbucket.Overrides(chosen, byKey{"k": limits}), Enforcement: isOff, Candidate: limits},
		{Plan: tokenbucket.Unlimited(), Enforcement: tokenbucket.Enforcement{Share: 0.1}, Candidate: tokenbucket.Unlimited()},
	} {
		l, _ := newLimiter(t, tokenbucket.PerDay(5))
		ok(t, l.SetRule(want))
		for range 2 {
			if got := l.Rule(); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, want %+v", got, want)
			}
			ok(t, l.SetRule(l.Rule()))
		}
	}
	l := must(tokenbucket.New(memstore.New(), "api", limits, tokenbucket.WithCandidate(tokenbucket.PerDay(2))))
	ok(t, l.SetPlan(tokenbucket.PerDay(7)))
	if got := l.Rule(); got != (tokenbucket.Rule{Plan: tokenbucket.PerDay(7), Enforcement: tokenbucket.Enforcement{Share: 1}, Candidate: tokenbucket.PerDay(2)}) {
		t.Errorf("%+v", got)
	}
}

// A candidate begins and ends while the limiter is in use, and keeps its used tokens.
func TestSetCandidate(t *testing.T) {
	st := memstore.New()
	defer namesake.Watch(st)()
	l := must(tokenbucket.New(st, "api", tokenbucket.PerDay(100)))
	denied := func() uint64 { // by candidates, of three requests
		t.Helper()
		before, _ := namesake.Members(st)[0].Counter.Read()
		for range 3 {
			if !must(l.Allow(t.Context(), "k")).Allowed {
				t.Error("the candidate denies")
			}
		}
		after, _ := namesake.Members(st)[0].Counter.Read()
		return after.Totals[6] - before.Totals[6]
	}
	for _, c := range []struct {
		candidate tokenbucket.Plan
		want      uint64
	}{{nil, 0}, {tokenbucket.PerDay(2), 1}, {tokenbucket.PerDay(3), 2}, {nil, 0}, {tokenbucket.PerDay(4), 2}} {
		ok(t, l.SetCandidate(c.candidate))
		if got := denied(); got != c.want {
			t.Errorf("%v denies %d, want %d", c.candidate, got, c.want)
		}
	}
	for _, plan := range []tokenbucket.Plan{tokenbucket.PerHour(0), tokenbucket.Limits{}} {
		if err := l.SetCandidate(plan); !errors.Is(err, tokenbucket.ErrInvalidLimit) {
			t.Errorf("%v: %v", plan, err)
		}
	}
	if got := denied(); got != 3 {
		t.Errorf("the candidate has changed: it denies %d", got)
	}
	chosen := tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return tokenbucket.PerDay(1), nil })
	for want, list := range map[bool][]tokenbucket.Plan{true: {tokenbucket.PerDay(1), nil}, false: {chosen, tokenbucket.Overrides(chosen, nil)}} {
		for _, plan := range list {
			ok(t, l.SetCandidate(plan))
			if l.FixedPlan() != want {
				t.Errorf("%T needs no context: %v", plan, !want)
			}
		}
	}
}

// Each decision is by one rule, while rules change all the time.
func TestRulesChangeBesideDecisions(t *testing.T) {
	changes := 100_000
	if testing.Short() {
		changes = 10_000
	}
	st := memstore.New()
	const plenty = 1_000_000_000
	l := must(tokenbucket.New(st, "api", tokenbucket.PerHour(plenty).Named("enforced")))
	rules := []tokenbucket.Rule{
		{Plan: tokenbucket.PerHour(plenty).Named("enforced"), Candidate: tokenbucket.PerHour(1)},
		{Plan: tokenbucket.PerDay(1).Named("shadow"), Enforcement: inShadow},
		{Plan: tokenbucket.Overrides(tokenbucket.PerDay(1).Named("none"), byKey{"k*": tokenbucket.PerDay(1).Named("shadow")}), Enforcement: inShadow},
		{Plan: tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) {
			return tokenbucket.PerHour(plenty).Named("enforced"), nil
		})},
		{Plan: tokenbucket.PerDay(1).Named("off"), Enforcement: isOff, Candidate: tokenbucket.PerHour(1)},
	}
	var done atomic.Bool
	var workers sync.WaitGroup
	seen := []*sync.Map{{}, {}, {}, {}}
	for i := range seen {
		workers.Go(func() {
			for n := 0; !done.Load(); n++ {
				key := fmt.Sprint("k", n%10)
				var d tokenbucket.Decision
				var err error
				switch n % 4 {
				case 0:
					d, err = l.Allow(t.Context(), key)
				case 1:
					d, err = tokenbucket.All(t.Context(), l.Ask(key, 1), l.Ask("k-other", 1), l.Ask("k-third", 1))
				case 2:
					d, err = reserved(l.ReserveN(t.Context(), key, 1))
				case 3:
					if err = l.Wait(t.Context(), key); err == nil {
						continue
					}
				}
				mode := "enforced"
				switch {
				case d.Shadow:
					mode = "shadow"
				case !d.Enforced():
					mode = "unenforced"
				}
				limits := ""
				for _, s := range d.Limits() {
					limits = s.Name
				}
				seen[i].Store(mode, true)
				if err != nil || !d.Allowed || (mode == "enforced") != (limits == "enforced") || mode == "shadow" && limits != "shadow" ||
					mode == "unenforced" && limits != "shadow" && limits != "" {
					t.Errorf("%s: limits of %q, %+v, %v", mode, limits, d, err)
					return
				}
			}
		})
	}
	modes := []string{"enforced", "shadow", "unenforced"}
	missing := func() []string {
		return slices.DeleteFunc(slices.Clone(modes), func(mode string) bool {
			return slices.ContainsFunc(seen, func(m *sync.Map) bool { _, ok := m.Load(mode); return ok })
		})
	}
	began := time.Now()
	for n := 0; n < changes || len(missing()) > 0 && time.Since(began) < time.Minute; n++ {
		ok(t, l.SetRule(rules[n%len(rules)]))
		if n%10 == 0 { // the single steps, of which each leaves a rule that passes
			ok(t, l.SetEnforcement(isOff))
			ok(t, l.SetCandidate(tokenbucket.PerHour(1)))
			ok(t, l.SetPlan(tokenbucket.PerDay(1).Named("shadow")))
			ok(t, l.SetEnforcement(inShadow))
			ok(t, l.SetCandidate(nil))
		}
	}
	done.Store(true)
	workers.Wait()
	for _, mode := range missing() {
		t.Errorf("no decision was %s", mode)
	}
}
