package rules_test

import (
	"context"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// FuzzApply looks for a document that Check accepts and mechanisms do not. Its names are those of
// the mechanisms: others are optional.
func FuzzApply(f *testing.F) {
	f.Add("limits: { api: { limit: 5/1m, overrides: [{ keys: [k, l*], limits: [5/1s, 6/1m] }], candidate: 1/1h, enforce: 10% } }")
	f.Add("mode: off\nlimits: { api: { limits: [10000/month from=15 in=Europe/Berlin, 100/1m strict burst=20 name=x counts=y overdraft=5 reset-on-change] } }")
	f.Add("semaphores: { reports: { capacity: 4, overrides: [{ keys: [big*], capacity: 8 }], tiers: { normal: 90%, low: .5%, background: 0.1% } } }")
	f.Add("semaphores: { gate: { min: 1, max: 1073741824, target: 1ms, mode: off, tiers: { normal: 100%, low: 100%, background: 100% } } }")
	f.Add("mode: shadow\nlimits: { signup: { mode: enforce, enforce: 0.0001% }, api: { overrides: [{ keys: ['', \"\\0\"], limit: 1/1us }] } }")
	for _, text := range rules.GoodDocuments() {
		if len(text) < 1<<11 {
			f.Add(text)
		}
	}
	s := newService(f)
	ok(f, s.signup.SetPlan(tokenbucket.Overrides(tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) {
		return tokenbucket.PerSecond(1), nil
	}), map[string]tokenbucket.Plan{"code*": tokenbucket.PerSecond(2)})))
	d := document("{}")
	f.Fuzz(func(t *testing.T, text string) {
		if rules.Check([]byte(text)) != nil {
			return
		}
		for _, m := range []string{"reports: ", "gate: "} { // a fixed capacity is none of gate's, and the other way round
			if strings.Contains(text, m) && (strings.Contains(text, "min") == (m == "reports: ")) {
				return
			}
		}
		d.set(text)
		r, err := rules.Open(t.Context(), d.source(), quiet(), s.all(), rules.Optional(rules.NamesIn(text)...))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for _, key := range []string{"k", "l7", "big", "code", strings.Repeat("x", 100)} {
			for _, l := range []*tokenbucket.Limiter{s.api, s.signup} {
				if _, err := l.Peek(t.Context(), key); err != nil {
					t.Errorf("%q: %s: %v", text, key, err)
				}
			}
			for _, m := range []*semaphore.Semaphore{s.reports, s.gate} {
				if n, err := m.Tier(semaphore.Low).Capacity(key); err != nil || n < 1 {
					t.Errorf("%q: %s: %d, %v", text, key, n, err)
				}
			}
		}
		d.set("{}") // undoes it
		ok(t, r.Reload(t.Context()))
		ok(t, r.Close())
	})
}
