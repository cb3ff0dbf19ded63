package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func (s *shop) begin(op guard.Operation) *guard.Attempt {
	s.t.Helper()
	a, result, err := s.guard.Begin(s.t.Context(), op)
	if err != nil || a == nil {
		s.t.Fatalf("Begin: %v, %v", result, err)
	}
	return a
}

// replays checks that an operation has this result.
func (s *shop) replays(op guard.Operation, want string) {
	s.t.Helper()
	_, result, err := s.guard.Begin(s.t.Context(), op)
	if err != nil || result == nil || string(result.Data) != want || result.Status != 201 {
		s.t.Errorf("Begin: %+v, %v, want the result %q", result, err, want)
	}
}

func resultOf(text string) guard.Result { return guard.Result{Status: 201, Data: []byte(text)} }

// complete inserts an order and completes an attempt in a transaction, which it returns.
func (s *shop) complete(a *guard.Attempt, key, text string) (pgx.Tx, error) {
	s.t.Helper()
	tx, err := s.pool.Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := tx.Exec(s.t.Context(), insertOrder, text, key); err != nil {
		s.t.Fatal(err)
	}
	return tx, Complete(s.t.Context(), tx, a, resultOf(text))
}

func TestComplete(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, again := range map[string]func(a *guard.Attempt) error{
		"complete": func(a *guard.Attempt) error { return a.Complete(t.Context(), resultOf("other")) },
		"unknown":  func(a *guard.Attempt) error { return a.CompleteUnknown(t.Context()) },
		"nothing":  func(*guard.Attempt) error { return nil },
	} {
		op := orderOp(name)
		a := s.begin(op)
		tx, err := s.complete(a, op.Key, "a")
		if err != nil {
			t.Fatal(err)
		}
		if a.Context().Err() != nil {
			t.Errorf("%s: the attempt has ended before the commit: %v", name, context.Cause(a.Context()))
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.replays(op, "a")
		if err := again(a); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.replays(op, "a")
		s.wantOrders(op.Key, "a")
	}
	op := orderOp("abandoned")
	a := s.begin(op)
	tx, err := s.complete(a, op.Key, "a")
	if err == nil {
		err = tx.Commit(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Abandon(t.Context()); !errors.Is(err, guard.ErrLost) {
		t.Errorf("Abandon after the commit: %v", err)
	}
	s.replays(op, "a")
}

func TestCompleteSQL(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	op := orderOp("k")
	a := s.begin(op)
	tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{})
	if err == nil {
		_, err = tx.ExecContext(t.Context(), insertOrder, "a", op.Key)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Complete(t.Context(), SQLTx(tx), a, resultOf("a")), tx.Commit()); err != nil {
		t.Fatal(err)
	}
	s.replays(op, "a")
}

func TestCompleteRolledBack(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	op := orderOp("k")
	a := s.begin(op)
	for range 2 {
		tx, err := s.complete(a, op.Key, "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.guard.Begin(t.Context(), op); !errors.Is(err, guard.ErrInFlight) {
			t.Errorf("after the rollback: %v", err)
		}
	}
	tx, err := s.complete(a, op.Key, "b")
	if err := errors.Join(err, tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	// The reply to the commit was lost, and the caller runs the transaction again.
	tx, err = s.complete(a, op.Key, "c")
	if !errors.Is(err, guard.ErrSettled) {
		t.Errorf("again: %v, want ErrSettled", err)
	}
	_ = tx.Rollback(t.Context())
	if err := a.Complete(t.Context(), resultOf("d")); !errors.Is(err, guard.ErrSettled) {
		t.Errorf("settled: %v", err)
	}
	s.replays(op, "b")
	s.wantOrders(op.Key, "b")
}

// TestCompleteLost has another attempt take over.
func TestCompleteLost(t *testing.T) {
	t.Parallel()
	s := newShop(t, guard.WithRerun(), guard.WithTTL(time.Minute))
	op := orderOp("k")
	a := s.begin(op)
	s.exec("UPDATE lk.operations SET lease_ends = 0") // it was not renewed
	b := s.begin(op)
	tx, err := s.complete(a, op.Key, "a")
	if !errors.Is(err, guard.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	_ = tx.Rollback(t.Context())
	if err := a.Complete(t.Context(), resultOf("a")); !errors.Is(err, guard.ErrSettled) {
		t.Errorf("after the loss: %v", err)
	}
	tx, err = s.complete(b, op.Key, "b")
	if err := errors.Join(err, tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	s.replays(op, "b")
	s.wantOrders(op.Key, "b")

	op = orderOp("gone")
	a = s.begin(op)
	s.exec("DELETE FROM lk.operations")
	tx, err = s.complete(a, op.Key, "a")
	if !errors.Is(err, guard.ErrLost) {
		t.Errorf("without a record: %v, want ErrLost", err)
	}
	_ = tx.Rollback(t.Context())
}

// TestCompleteBlocks has a transaction stay open in which an attempt is completed: others' leases
// are renewed until it ends, and no process takes over.
func TestCompleteBlocks(t *testing.T) {
	t.Parallel()
	ttl := testpace.Scale(1500 * time.Millisecond)
	s := newShop(t, guard.WithRerun(), guard.WithTTL(ttl))
	held, other := orderOp("held"), orderOp("other")
	a, b := s.begin(held), s.begin(other)
	tx, err := s.complete(a, held.Key, "a")
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * ttl)
	if b.Context().Err() != nil {
		t.Errorf("the other attempt has ended: %v", context.Cause(b.Context()))
	}
	if _, _, err := s.guard.Begin(t.Context(), held); !errors.Is(err, guard.ErrInFlight) {
		t.Errorf("beside the transaction: %v, want ErrInFlight", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.replays(held, "a")
	s.wantOrders(held.Key, "a")
}

func TestCompleteOfAnotherStore(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	st := memstore.New()
	defer func() { _ = st.Close() }()
	g, err := guard.New(st, "orders")
	if err != nil {
		t.Fatal(err)
	}
	a, _, err := g.Begin(t.Context(), orderOp("k"))
	if err != nil {
		t.Fatal(err)
	}
	tx, err := s.complete(a, "k", "a")
	if err == nil {
		t.Error("no error")
	}
	_ = tx.Rollback(t.Context())
	if err := a.Abandon(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := Do(t.Context(), g, orderOp("k"), s.pool, func(context.Context, pgx.Tx) (int, error) { return 0, nil }); err == nil {
		t.Error("Do: no error")
	}
	if err := g.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}
