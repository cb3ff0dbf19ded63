package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// recorder records the requests to a store.
type recorder struct {
	store.Store
	begun []store.BeginRequest
}

func (r *recorder) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	r.begun = append(r.begun, req)
	return r.Store.BeginOperation(ctx, req)
}

func TestNewRefuses(t *testing.T) {
	st := memstore.New()
	for name, build := range map[string]func() (*guard.Guard, error){
		"nil store":       func() (*guard.Guard, error) { return guard.New(nil, "g") },
		"typed nil store": func() (*guard.Guard, error) { return guard.New((*redisstore.Store)(nil), "g") },
		"no name":         func() (*guard.Guard, error) { return guard.New(st, "") },
		"odd name":        func() (*guard.Guard, error) { return guard.New(st, "a\nb") },
		"short lease":     func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithTTL(time.Millisecond)) },
		"long lease":      func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithTTL(25*time.Hour)) },
		"no retention":    func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithRetention(0)) },
		"less than lease": func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithRetention(time.Second)) },
		"no records":      func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithMaxPerScope(0)) },
		"many records":    func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithMaxPerScope(1<<20+1)) },
		"no bytes":        func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithMaxScopeBytes(0)) },
		"many bytes":      func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithMaxScopeBytes(1<<30+1)) },
		"huge result":     func() (*guard.Guard, error) { return guard.New(st, "g", guard.WithMaxResult(17<<20)) },
	} {
		if g, err := build(); g != nil || err == nil || !strings.HasPrefix(err.Error(), "guard: New: ") {
			t.Errorf("%s: %v, %v", name, g, err)
		}
	}
	g, err := guard.New(st, "g", nil, guard.WithRerun(), guard.WithMaxResult(5))
	if err != nil || g.Name() != "g" || g.MaxResult() != 5 {
		t.Errorf("%v, %v", g, err)
	}
}

func TestInvalidOperations(t *testing.T) {
	r := &recorder{Store: memstore.New()}
	g := newGuard(t, r)
	for _, op := range []guard.Operation{
		{}, {Scope: "alice"}, {Key: strings.Repeat("k", 1025)}, {Scope: strings.Repeat("s", 1025), Key: "k"},
	} {
		if _, _, err := g.Begin(t.Context(), op); !errors.Is(err, guard.ErrInvalidOperation) {
			t.Errorf("Begin with a key of %d and a scope of %d bytes: %v", len(op.Key), len(op.Scope), err)
		}
	}
	if len(r.begun) != 0 {
		t.Error("the store was called")
	}
}

// The store gets no text of a client, and every part of an operation's name counts.
func TestNamesOfRecords(t *testing.T) {
	st := &recorder{Store: memstore.New()}
	secret := guard.WithSecret([]byte("pepper"))
	other := must(guard.New(st, "refunds"))
	plain, keyed := newGuard(t, st), newGuard(t, st, secret)
	ids := map[string]string{}
	for name, begin := range map[string]func() (*guard.Attempt, *guard.Result, error){
		"usual":         func() (*guard.Attempt, *guard.Result, error) { return plain.Begin(t.Context(), op) },
		"with a secret": func() (*guard.Attempt, *guard.Result, error) { return keyed.Begin(t.Context(), op) },
		"another guard": func() (*guard.Attempt, *guard.Result, error) { return other.Begin(t.Context(), op) },
		"another scope": func() (*guard.Attempt, *guard.Result, error) {
			return plain.Begin(t.Context(), guard.Operation{Scope: "bob", Key: "k1"})
		},
		"another key": func() (*guard.Attempt, *guard.Result, error) {
			return plain.Begin(t.Context(), guard.Operation{Scope: "alice", Key: "k2"})
		},
		"parts shifted": func() (*guard.Attempt, *guard.Result, error) {
			return plain.Begin(t.Context(), guard.Operation{Scope: "alicek", Key: "1"})
		},
		"parts shifted ": func() (*guard.Attempt, *guard.Result, error) {
			return plain.Begin(t.Context(), guard.Operation{Scope: "alic", Key: "ek1"})
		},
	} {
		a, _, err := begin()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		req := st.begun[len(st.begun)-1]
		if twin, ok := ids[req.ID]; ok {
			t.Errorf("%s and %s are one operation", name, twin)
		}
		ids[req.ID] = name
		if len(req.Scope) != 22 || len(req.ID) != 22 || len(req.Owner) != 22 || len(req.Fingerprint) != 43 {
			t.Errorf("%s: lengths of %d, %d, %d and %d", name, len(req.Scope), len(req.ID), len(req.Owner), len(req.Fingerprint))
		}
		for _, sent := range []string{req.Scope, req.ID, req.Owner, req.Fingerprint} {
			if strings.Contains(sent, "alice") || strings.Contains(sent, "tea") || bytes.ContainsAny([]byte(sent), "{}: ") {
				t.Errorf("%s: the store was sent %q", name, sent)
			}
		}
		if err := a.Abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestScopesAreSeparate(t *testing.T) {
	g := newGuard(t, memstore.New())
	alice, _, err := g.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if err := alice.Complete(t.Context(), guard.Result{Data: []byte("alice's")}); err != nil {
		t.Fatal(err)
	}
	bob, result, err := g.Begin(t.Context(), guard.Operation{Scope: "bob", Key: op.Key, Fingerprint: op.Fingerprint})
	if bob == nil || result != nil || err != nil {
		t.Fatalf("bob got %v, %v, %v", bob, result, err)
	}
	_ = bob.Abandon(t.Context())
	changed := op
	changed.Fingerprint = []byte("coffee")
	if _, _, err := g.Begin(t.Context(), changed); !errors.Is(err, guard.ErrMismatch) {
		t.Errorf("another request with the key: %v", err)
	}
}

func TestErrorTexts(t *testing.T) {
	for err, want := range map[error]error{
		&guard.InFlightError{Remaining: time.Second}: guard.ErrInFlight,
		&guard.NotRetainedError{Status: 201}:         guard.ErrNotRetained,
		&guard.ScopeFullError{Guard: "orders"}:       guard.ErrScopeFull,
	} {
		if !errors.Is(fmt.Errorf("wrapped: %w", err), want) || errors.Is(err, guard.ErrMismatch) || !strings.HasPrefix(err.Error(), "guard: ") {
			t.Errorf("%v does not match %v alone", err, want)
		}
	}
}
