package statement

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
)

var begin, release, renew = Operation{Name: "begin"}, Operation{"release", ReleaseShare}, Operation{"renew", RenewalShare}

// The share of each kind of call is left to it, whatever others want.
func TestShares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s shares
		s.init(8)
		running := make(map[string]int)
		var all []admission
		take := func(name string, call Call, calls int) {
			for range calls {
				go func() {
					a, err := s.take(t.Context(), call)
					if err == nil { // one at a time, since Wait returns when all are blocked
						running[name]++
						all = append(all, a)
					}
				}()
				synctest.Wait()
			}
		}
		record := func(scope string) Call { return Call{Operation: begin, Flow: scope} }
		for _, c := range []struct {
			name     string
			call     Call
			calls    int
			admitted int
		}{
			{"records of a scope", record("one"), 10, 2},
			{"records of another scope", record("two"), 10, 2},
			{"records of a third scope", record("three"), 10, 0},
			{"decisions", Call{Operation: begin}, 10, 2},
			{"releases", Call{Operation: release}, 10, 1},
			{"renewals", Call{Operation: renew}, 1, 1},
		} {
			take(c.name, c.call, c.calls)
			if running[c.name] != c.admitted {
				t.Errorf("%d %s of %d were admitted, want %d", running[c.name], c.name, c.calls, c.admitted)
			}
		}
		for i := 0; i < len(all); i++ {
			all[i].give()
			synctest.Wait()
		}
		if want := 10 + 10 + 10 + 10 + 10 + 1; len(all) != want || len(s.records.flows) != 0 || len(s.records.next) != 0 {
			t.Errorf("%d calls of %d were admitted, %d scopes are kept", len(all), want, len(s.records.flows))
		}
	})
}

// Scopes take turns: one with many calls that wait is not before one with a single call.
func TestScopesTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r recordShares
		r.init(1, 1)
		first, err := r.take(t.Context(), "crowd", false)
		must(t, err)
		var order []string
		for _, scope := range []string{"crowd", "crowd", "alone", "crowd"} {
			go func() {
				if f, err := r.take(t.Context(), scope, false); err == nil {
					order = append(order, scope)
					r.give(f)
				}
			}()
			synctest.Wait()
		}
		r.give(first)
		synctest.Wait()
		if want := []string{"alone", "crowd", "crowd", "crowd"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
	})
}

// A call that gives up leaves no trace, and what finishes something goes before what begins.
func TestSharesOfAScope(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s shares
		s.init(1)
		call := Call{Operation: begin, Flow: "one"}
		first, err := s.take(t.Context(), call)
		must(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.take(ctx, call); err == nil {
			t.Fatal("two calls have one connection")
		}
		var order []string
		for _, c := range []struct {
			name    string
			urgency batch.Urgency
		}{{"begins", batch.Ordinary}, {"settles", batch.Finishing}} {
			go func() {
				a, err := s.take(t.Context(), Call{Operation: begin, Urgency: c.urgency, Flow: "one"})
				order = append(order, c.name)
				if err == nil {
					a.give()
				}
			}()
			synctest.Wait()
		}
		first.give()
		synctest.Wait()
		if !slices.Equal(order, []string{"settles", "begins"}) || len(s.records.flows) != 0 {
			t.Errorf("%v, and %d scopes are kept", order, len(s.records.flows))
		}
	})
}
