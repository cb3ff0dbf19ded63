package pgstore

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/guard"
)

// savepoints is a transaction of an application with nested ones.
type savepoints interface {
	Tx
	exec(t *testing.T, sql string, args ...any)
	commit(t *testing.T)
	rollback(t *testing.T)
	nested(t *testing.T) savepoints
}

// nestedPgx is a transaction of pgx, whose Begin makes a savepoint.
type nestedPgx struct{ pgx.Tx }

func (n nestedPgx) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := n.Exec(t.Context(), sql, args...)
	must(t, err)
}
func (n nestedPgx) commit(t *testing.T)   { t.Helper(); must(t, n.Commit(t.Context())) }
func (n nestedPgx) rollback(t *testing.T) { t.Helper(); must(t, n.Rollback(t.Context())) }
func (n nestedPgx) nested(t *testing.T) savepoints {
	t.Helper()
	tx, err := n.Begin(t.Context())
	must(t, err)
	return nestedPgx{tx}
}

// nestedSQL is a transaction of database/sql, or a savepoint of it, as frameworks make them.
type nestedSQL struct {
	sqlTx
	isSavepoint bool
}

func (n nestedSQL) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := n.tx.ExecContext(t.Context(), sql, args...)
	must(t, err)
}

func (n nestedSQL) commit(t *testing.T) {
	t.Helper()
	if n.isSavepoint {
		n.exec(t, "RELEASE SAVEPOINT a")
		return
	}
	must(t, n.tx.Commit())
}

func (n nestedSQL) rollback(t *testing.T) {
	t.Helper()
	if n.isSavepoint {
		n.exec(t, "ROLLBACK TO SAVEPOINT a")
		return
	}
	must(t, n.tx.Rollback())
}

func (n nestedSQL) nested(t *testing.T) savepoints {
	t.Helper()
	n.exec(t, "SAVEPOINT a")
	return nestedSQL{n.sqlTx, true}
}

func TestCompleteInASavepoint(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for library, begin := range map[string]func() savepoints{
		"pgx": func() savepoints {
			tx, err := s.pool.Begin(t.Context())
			must(t, err)
			return nestedPgx{tx}
		},
		"sql": func() savepoints {
			tx, err := s.db.BeginTx(t.Context(), nil)
			must(t, err)
			return nestedSQL{sqlTx{tx}, false}
		},
	} {
		inFlight := func(op guard.Operation) {
			t.Helper()
			if _, _, err := s.guard.Begin(t.Context(), op); !errors.Is(err, guard.ErrInFlight) {
				t.Errorf("%s: %v, want ErrInFlight", op.Key, err)
			}
		}
		complete := func(tx savepoints, a *guard.Attempt, text string) {
			t.Helper()
			must(t, Complete(t.Context(), tx, a, resultOf(text)))
		}
		for name, test := range map[string]func(op guard.Operation, a *guard.Attempt, outer, inner savepoints){
			"released": func(op guard.Operation, a *guard.Attempt, outer, inner savepoints) {
				inner.commit(t)
				outer.commit(t)
				s.replays(op, "a")
				must(t, a.Complete(t.Context(), resultOf("other")))
				s.replays(op, "a")
				s.wantOrders(op.Key, "a", "outer")
			},
			"released, and all rolled back": func(op guard.Operation, a *guard.Attempt, outer, inner savepoints) {
				inner.commit(t)
				outer.rollback(t)
				inFlight(op)
				must(t, a.Abandon(t.Context()))
				s.wantOrders(op.Key)
			},
			// Nothing tells the store that the rest is committed: the record is as before Complete.
			"rolled back": func(op guard.Operation, a *guard.Attempt, outer, inner savepoints) {
				inner.rollback(t)
				outer.commit(t)
				inFlight(op)
				if a.Context().Err() != nil {
					t.Errorf("the attempt has ended: %v", context.Cause(a.Context()))
				}
				must(t, a.Complete(t.Context(), resultOf("b")))
				s.replays(op, "b")
				s.wantOrders(op.Key, "outer")
			},
			"rolled back, and completed again": func(op guard.Operation, a *guard.Attempt, outer, inner savepoints) {
				inner.rollback(t)
				complete(outer, a, "b")
				outer.commit(t)
				s.replays(op, "b")
				s.wantOrders(op.Key, "outer")
			},
			"twice": func(op guard.Operation, a *guard.Attempt, outer, inner savepoints) {
				inner.commit(t)
				complete(outer, a, "b")
				outer.commit(t)
				s.replays(op, "a")
				must(t, a.Complete(t.Context(), resultOf("other")))
				s.wantOrders(op.Key, "a", "outer")
			},
			// Nothing of it is committed, and so it is not settled.
			"twice, and all rolled back": func(op guard.Operation, a *guard.Attempt, outer, inner savepoints) {
				inner.commit(t)
				complete(outer, a, "b")
				outer.rollback(t)
				inFlight(op)
				must(t, a.Complete(t.Context(), resultOf("c")))
				s.replays(op, "c")
				s.wantOrders(op.Key)
			},
		} {
			op := orderOp(library + " " + name)
			a, outer := s.begin(op), begin()
			outer.exec(t, insertOrder, "outer", op.Key)
			inner := outer.nested(t)
			inner.exec(t, insertOrder, "a", op.Key)
			complete(inner, a, "a")
			test(op, a, outer, inner)
		}
	}
}
