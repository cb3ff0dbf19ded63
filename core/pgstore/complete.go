package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Tx is a transaction of pgx, or one of database/sql: see [SQLTx].
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// SQLTx returns a transaction of database/sql, with a driver for PostgreSQL, as [Complete], [Bind] and
// [Store.PutTaskIn] take it.
func SQLTx(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

const completeSQL = `SELECT lk.complete_operation_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`

var errInTransaction = errors.New("pgstore: the attempt is completed when the transaction is committed")

// Complete completes an attempt in the caller's transaction, which has the effects of the
// operation: both are committed, or neither is. The attempt's guard is on a [Store]. The
// transaction is one of the same database, and its user has the rights of [Grants]. Complete is the
// last step before the commit, since the record is locked until then. Other operations, also of the
// same scope, do not wait for it.
//
// Complete returns nil if the attempt is completed once the transaction is committed. The attempt
// is then settled as ever, by the middleware or the caller:
//   - after the commit with [guard.Attempt.Complete], which finds the result in the record;
//   - after a rollback with Abandon or CompleteUnknown.
//
// The result that replays is r, or that of the first call in the transaction. For middleware it is
// one of its encoding (idempotency.Answer).
//
// In a savepoint, such as a nested transaction of pgx or of a framework, the completion is a part
// of the innermost one, and is undone with it. The record is then as if Complete had not been
// called, although Complete has returned nil and the outer transaction may commit. Call Complete
// again before the commit in that case. Otherwise the attempt is in flight after the commit; the
// middleware, or guard.Attempt.Complete, then records the result on its own, and a crash between
// the two leaves effects without a record. The release of a savepoint changes nothing.
//
// If the operation has no effects beside those of the transaction, build the guard
// [guard.WithRerun]: an attempt that died has then had none, or is completed, and no outcome is
// ever unknown.
//
// After an error the caller must roll back. The error is one of:
//   - [guard.ErrLost] if another attempt has taken over, or the record is gone;
//   - guard.ErrSettled if the attempt was completed before, also by an earlier transaction. If the
//     outcome of a commit is unknown, the caller runs the transaction again: ErrSettled then means
//     that the first was committed, and nil that it was not;
//   - an error of the database. With an isolation level above READ COMMITTED a renewal of the
//     attempt's lease may fail the transaction (40001), which is then run again.
func Complete(ctx context.Context, tx Tx, a *guard.Attempt, r guard.Result) error {
	before := false
	err := a.CompleteBy(ctx, r, func(
		ctx context.Context, st store.Records, req store.SettleRequest,
	) (owned bool, err error) {
		s, ok := st.(*Store)
		if !ok {
			return false, errors.New("pgstore: Complete: the guard's store is not a *pgstore.Store")
		}
		var outcome string
		if err := tx.QueryRow(ctx, s.db.Text(completeSQL), settleArgs(&req)...).Scan(&outcome); err != nil {
			return false, fmt.Errorf("pgstore: Complete: %w", err)
		}
		switch outcome {
		case "owned":
			return false, errInTransaction
		case "settled": // the caller rolls back, which would confirm nothing
			before = true
			return true, s.db.Confirm(ctx, opSettleOperation)
		}
		return false, nil
	})
	switch {
	case errors.Is(err, errInTransaction):
		return nil
	case err == nil && before:
		return guard.ErrSettled
	}
	return err
}
