package guard_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// A scope takes 100,000 operations, and says before it is full, and when it is, whose digest it has.
func TestFullScope(t *testing.T) {
	const most = 100_000
	var log bytes.Buffer
	st := memstore.New()
	g := must(guard.New(st, "orders", guard.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
	t.Cleanup(func() { _ = errors.Join(g.Close(), st.Close()) })
	begin := func(scope string, n int) (*guard.Attempt, error) {
		a, _, err := g.Begin(t.Context(), guard.Operation{Scope: scope, Key: strconv.Itoa(n)})
		return a, err
	}
	digest := ""
	for n := range most {
		a, err := begin("alice", n)
		if err != nil {
			t.Fatalf("operation %d: %v", n+1, err)
		}
		digest = a.OperationID()[22:]
		if err := a.Complete(t.Context(), guard.Result{}); err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(log.String(), "80 %"); said != (n+1 >= most*8/10) {
			t.Fatalf("after %d operations the log is %q", n+1, log.String())
		}
	}
	for range 3 {
		var full *guard.ScopeFullError
		if _, err := begin("alice", most); !errors.As(err, &full) || full.RetryAfter <= 0 || full.RetryAfter > 24*time.Hour {
			t.Fatalf("one operation too many: %v", err)
		}
	}
	if a, err := begin("bob", 1); err != nil || a.Complete(t.Context(), guard.Result{}) != nil {
		t.Errorf("in another scope: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[1], "a scope is full") || strings.Contains(log.String(), "alice") {
		t.Fatalf("logged:\n%s", log.String())
	}
	for _, line := range lines {
		if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "scope="+digest) {
			t.Errorf("logged %q of the scope with the digest %s", line, digest)
		}
	}
}

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
