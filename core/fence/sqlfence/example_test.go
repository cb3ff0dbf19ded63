package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/sqlfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

// The mark is a column of the row that is written. A handler that was paused for longer than its
// lease writes nothing.
func Example_oneRow() {
	markPaid := func(ctx context.Context, db *sql.DB, lease *lock.Lease, id string) error {
		token := lease.Fence()
		err := sqlfence.Exec(ctx, db, token,
			`UPDATE orders SET status = 'paid', fence = $1 WHERE id = $2 AND fence <= $1`, token.Number, id)
		if !errors.Is(err, fence.ErrStale) {
			return err
		}
		// No row was written: the order is not there, or a later holder has written it.
		if reason := sqlfence.Compare(ctx, db, token, `SELECT fence FROM orders WHERE id = $1`, id); reason != nil {
			return reason // sqlfence.ErrNoRow, or fence.ErrStale with both numbers
		}
		return err
	}
	_ = markPaid
}

// The mark has a row of its own, which the transaction raises before it writes: so no later holder
// comes between the check and the writes.
func Example_transaction() {
	ship := func(ctx context.Context, db *sql.DB, lease *lock.Lease, id string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after the commit
		token := lease.Fence()
		err = sqlfence.Exec(ctx, tx, token,
			`INSERT INTO fences (resource, fence) VALUES ($1, $2)
			ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence
			WHERE fences.fence <= excluded.fence`,
			"order/"+id, token.Number)
		if err != nil {
			return err // fence.ErrStale: a later holder was here, and nothing is written
		}
		if _, err := tx.ExecContext(ctx, `UPDATE orders SET status = 'shipped' WHERE id = $1`, id); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM reservations WHERE order_id = $1`, id); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = ship
}
