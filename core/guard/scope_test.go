package guard_test

import (
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// No answer, record or resolution of an operation is reachable from another one: of another scope, key
// or guard.
func FuzzScopes(f *testing.F) {
	f.Add("alice", "1", "bob", "1")
	f.Add("alice", "1", "alice", "2")
	f.Add("", "1", "alice", "1")
	f.Add("ab", "c", "a", "bc")
	f.Add("a\x00", "b", "a", "\x00b")
	f.Add("a}", "b", "a", "}b")
	f.Add("\xff", "k", "\xfe", "k")
	f.Fuzz(func(t *testing.T, scope, key, otherScope, otherKey string) {
		if scope == otherScope && key == otherKey {
			t.Skip("the same operation")
		}
		st := memstore.New(memstore.WithMaxBuckets(1), memstore.WithMaxLeases(1))
		g, refunds := must(guard.New(st, "orders")), must(guard.New(st, "refunds"))
		defer func() { _ = errors.Join(g.Close(), refunds.Close(), st.Close()) }()
		one, other := guard.Operation{Scope: scope, Key: key}, guard.Operation{Scope: otherScope, Key: otherKey}
		for _, op := range []guard.Operation{one, other} {
			if _, err := g.Inspect(t.Context(), op); errors.Is(err, guard.ErrInvalidOperation) {
				t.Skip(err)
			}
		}
		begin := func(op guard.Operation) *guard.Attempt {
			a, result, err := g.Begin(t.Context(), op)
			if err != nil || result != nil {
				t.Fatalf("%+v is no new operation: %+v, %v", op, result, err)
			}
			return a
		}
		check := func(err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Fatalf("got %v, want %v", err, want)
			}
		}
		inspect := func(op guard.Operation, want guard.State) guard.Record {
			t.Helper()
			r, err := g.Inspect(t.Context(), op)
			check(err, nil)
			if r.State != want {
				t.Fatalf("%+v is %s, want %s", op, r.State, want)
			}
			return r
		}
		first, second := begin(one), begin(other)
		check(first.Complete(t.Context(), guard.Result{Data: []byte("of one")}), nil)
		check(second.CompleteUnknown(t.Context()), nil)
		finished, unknown := inspect(one, guard.Completed), inspect(other, guard.Unknown)

		// Halves of two IDs are the ID of an operation only if the scope is the same.
		for _, mixed := range []string{finished.ID[:22] + unknown.ID[22:], unknown.ID[:22] + finished.ID[22:], finished.ID[22:] + finished.ID[:22]} {
			if mixed == finished.ID || mixed == unknown.ID || mixed == "" {
				continue
			}
			_, err := g.InspectID(t.Context(), mixed)
			check(err, guard.ErrNoRecord)
		}
		for _, id := range []string{finished.ID, unknown.ID} {
			_, err := refunds.InspectID(t.Context(), id)
			check(err, guard.ErrNoRecord)
		}

		happened := guard.Happened(guard.Result{Data: []byte("as found out")})
		if err := refunds.Resolve(t.Context(), unknown, happened, "on-call", "found"); err == nil {
			t.Error("another guard resolves it")
		}
		check(g.Resolve(t.Context(), finished, happened, "on-call", "found"), guard.ErrOutcomeKnown)
		inspect(other, guard.Unknown)
		check(g.Resolve(t.Context(), unknown, happened, "on-call", "found"), nil)
		for op, want := range map[*guard.Operation]string{&one: "of one", &other: "as found out"} {
			_, result, err := g.Begin(t.Context(), *op)
			check(err, nil)
			if result == nil || string(result.Data) != want {
				t.Errorf("%+v has the result %+v, want %q", *op, result, want)
			}
		}
	})
}
