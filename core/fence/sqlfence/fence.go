// Package sqlfence refuses stale tokens for data in an SQL database. Its functions work with any
// driver of database/sql; placeholders are the driver's own.
//
// # One row
//
// Give the table a column for the mark, and compare and set it in the statement that writes:
//
//	ALTER TABLE orders ADD COLUMN fence BIGINT NOT NULL DEFAULT 0;
//
//	t := lease.Fence()
//	err := sqlfence.Exec(ctx, db, t,
//		`UPDATE orders SET status = $1, fence = $2 WHERE id = $3 AND fence <= $2`,
//		"paid", t.Number, id)
//
// The error matches [fence.ErrStale] if that wrote no row: the row's mark is above the token, or
// there is no such row. [Compare] tells which.
//
// # Several rows
//
// Keep the marks in a table of their own, and raise the mark first in the transaction that writes:
//
//	CREATE TABLE fences (resource VARCHAR(255) PRIMARY KEY, fence BIGINT NOT NULL);
//
//	tx, err := db.BeginTx(ctx, nil)
//	…
//	defer tx.Rollback()
//	err = sqlfence.Exec(ctx, tx, t,
//		`INSERT INTO fences (resource, fence) VALUES ($1, $2)
//		ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence
//		WHERE fences.fence <= excluded.fence`,
//		"order/42", t.Number)
//	… // return on an error; or else write whatever belongs to order 42
//	err = tx.Commit()
//
// The row of the mark stays locked until the commit, so that writers of a resource exclude each
// other, and a newer token cannot come between the check and the writes.
//
// # MySQL
//
// MySQL counts a row that an UPDATE does not change as not affected, so the second write of a
// holder would look stale: set clientFoundRows=true in the DSN. Its upsert cannot compare: create
// the row of the mark with INSERT IGNORE and the number 0, and raise it with an UPDATE as above.
package sqlfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/fence"
)

var (
	// ErrNoRow is returned by [Compare] if there is no row, and so no mark.
	ErrNoRow = errors.New("sqlfence: no such row")

	// ErrShared is returned by [Exec] for a shared token: if its number became a mark, it would
	// refuse other valid ones. Use [Compare]. Nothing was sent.
	ErrShared = errors.New("sqlfence: a shared token must not raise a mark")

	// ErrUnfenced is returned by [Exec] if the token's number is not among the arguments: such a
	// statement compares nothing. Nothing was sent.
	ErrUnfenced = errors.New("sqlfence: the token's number is not among the arguments")
)

// Execer is a *sql.DB, *sql.Conn or *sql.Tx, or a wrapper of one.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// RowQueryer is a *sql.DB, *sql.Conn or *sql.Tx, or a wrapper of one.
type RowQueryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Exec executes a statement that writes, and sets the mark to t.Number, only where the mark is not
// above it. The statement has one of the forms in the package's documentation; t.Number is among
// args. A statement that writes several rows with a mark each may write only some of them: keep one
// mark for them.
//
// If the error matches [fence.ErrStale], no row was written: the mark is above the token or, with
// an UPDATE, there is no such row. If it matches [fence.ErrInvalid], [ErrShared] or [ErrUnfenced],
// nothing was sent. Any other is the driver's, and the statement may have been carried out: outside
// of a transaction the holder may execute it again.
func Exec(ctx context.Context, db Execer, t fence.Token, query string, args ...any) error {
	if _, err := fence.Mark(0).Admit(t); err != nil {
		return err
	}
	if t.Shared {
		return ErrShared
	}
	if !contains(args, t.Number) {
		return ErrUnfenced
	}
	result, err := db.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	rows, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("sqlfence: the driver does not count rows: %w", err)
	}
	if rows == 0 {
		return fmt.Errorf("%w: number %d wrote no row", fence.ErrStale, t.Number)
	}
	return nil
}

func contains(args []any, number int64) bool {
	for _, arg := range args {
		if named, ok := arg.(sql.NamedArg); ok {
			arg = named.Value
		}
		// Any type of integer, but no value that only the driver can convert.
		if v, err := driver.DefaultParameterConverter.ConvertValue(arg); err == nil && v == driver.Value(number) {
			return true
		}
	}
	return false
}

// Compare reads a mark with a query that returns one number, and checks the token by the rule of
// [fence.Mark]. It changes no mark. It shows why [Exec] has written nothing:
//
//	err = sqlfence.Compare(ctx, db, t, `SELECT fence FROM orders WHERE id = $1`, id)
//
// In a transaction, with a query that locks the row (FOR SHARE), it admits a shared token for the
// writes that follow.
//
// An error matches [fence.ErrStale] or [fence.ErrInvalid], is [ErrNoRow] if the query returns no
// row, or is the driver's.
func Compare(ctx context.Context, db RowQueryer, t fence.Token, query string, args ...any) error {
	if _, err := fence.Mark(0).Admit(t); err != nil {
		return err
	}
	var seen int64
	switch err := db.QueryRowContext(ctx, query, args...).Scan(&seen); {
	case errors.Is(err, sql.ErrNoRows):
		return ErrNoRow
	case err != nil:
		return err
	}
	_, err := fence.Mark(seen).Admit(t)
	return err
}
