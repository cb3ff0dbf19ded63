package sqlfence_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver of the tests

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/sqlfence"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	schema = `
		CREATE TABLE orders (id TEXT PRIMARY KEY, status TEXT NOT NULL, fence BIGINT NOT NULL DEFAULT 0);
		CREATE TABLE lines (number BIGSERIAL, order_id TEXT NOT NULL, item TEXT NOT NULL);
		CREATE TABLE fences (resource VARCHAR(255) PRIMARY KEY, fence BIGINT NOT NULL);
		INSERT INTO orders (id, status) VALUES ('42', 'new');`
	update = `UPDATE orders SET status = $1, fence = $2 WHERE id = $3 AND fence <= $2`
	raise  = `INSERT INTO fences (resource, fence) VALUES ($1, $2)
		ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence
		WHERE fences.fence <= excluded.fence`
)

func open(t *testing.T) *sql.DB {
	t.Helper()
	db := must(sql.Open("pgx", postgrestest.Start(t).DSN()))
	t.Cleanup(func() { _ = db.Close() })
	must(db.Exec(schema))
	return db
}

// The mark is a column of the row that is written.
func TestColumn(t *testing.T) {
	db, ctx := open(t), t.Context()
	save := func(token fence.Token, id, status string) error {
		err := sqlfence.Exec(ctx, db, token, update, status, token.Number, id)
		if errors.Is(err, fence.ErrStale) { // or there is no such order
			if reason := sqlfence.Compare(ctx, db, token, `SELECT fence FROM orders WHERE id = $1`, id); reason != nil {
				err = reason
			}
		}
		return err
	}
	paused, next := fence.Token{Number: 33}, fence.Token{Number: 34} // of two leases
	if err := save(next, "42", "paid"); err != nil {
		t.Error(err)
	}
	if err := save(paused, "42", "cancelled"); fmt.Sprint(err) != "fence: stale token: number 33, and the resource has seen 34" {
		t.Error(err)
	}
	if err := save(next, "43", "paid"); !errors.Is(err, sqlfence.ErrNoRow) {
		t.Error(err)
	}
}

func status(t *testing.T, db *sql.DB) (status string, mark int64) {
	t.Helper()
	if err := db.QueryRow(`SELECT status, fence FROM orders WHERE id = '42'`).Scan(&status, &mark); err != nil {
		t.Fatal(err)
	}
	return status, mark
}

func TestExec(t *testing.T) {
	db := open(t)
	for i, c := range []struct {
		token  fence.Token
		id     string
		err    error
		reason error // of Compare
		mark   int64
	}{
		{fence.Token{Number: 5}, "42", nil, nil, 5},
		{fence.Token{Number: 5}, "42", nil, nil, 5},
		{fence.Token{Number: 4}, "42", fence.ErrStale, fence.ErrStale, 5},
		{fence.Token{Number: 1<<53 + 1}, "42", nil, nil, 1<<53 + 1},
		{fence.Token{Number: 1 << 53}, "42", fence.ErrStale, fence.ErrStale, 1<<53 + 1},
		{fence.Token{Number: 1<<53 + 2}, "43", fence.ErrStale, sqlfence.ErrNoRow, 1<<53 + 1},
		{fence.Token{}, "42", fence.ErrInvalid, fence.ErrInvalid, 1<<53 + 1},
		{fence.Token{Number: -5}, "42", fence.ErrInvalid, fence.ErrInvalid, 1<<53 + 1},
		{fence.Token{Number: 1<<53 + 9, Shared: true}, "42", sqlfence.ErrShared, nil, 1<<53 + 1},
		{fence.Token{Number: 7, Shared: true}, "42", sqlfence.ErrShared, fence.ErrStale, 1<<53 + 1},
	} {
		before, _ := status(t, db)
		err := sqlfence.Exec(t.Context(), db, c.token, update, fmt.Sprint("write ", i), c.token.Number, c.id)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%d: Exec = %v; want %v", i, err, c.err)
		}
		after, mark := status(t, db)
		if wrote := after != before; wrote != (c.err == nil) || mark != c.mark {
			t.Errorf("%d: the row is %q with a mark of %d", i, after, mark)
		}
		err = sqlfence.Compare(t.Context(), db, c.token, `SELECT fence FROM orders WHERE id = $1`, c.id)
		if !errors.Is(err, c.reason) || (err == nil) != (c.reason == nil) {
			t.Errorf("%d: Compare = %v; want %v", i, err, c.reason)
		}
	}
}

func TestExecNeedsTheNumber(t *testing.T) {
	db := open(t)
	token := fence.Token{Number: 5}
	for _, args := range [][]any{
		{},
		{"paid", 4, "42"},
		{"paid", "5", "42"},
		{"paid", []byte("5"), nil},
		{sql.Named("fence", 6), struct{}{}, []int{5}},
	} {
		if err := sqlfence.Exec(t.Context(), db, token, `UPDATE orders SET status = 'paid'`, args...); !errors.Is(err, sqlfence.ErrUnfenced) {
			t.Errorf("%v: %v", args, err)
		}
	}
	for _, args := range [][]any{
		{"paid", int32(5), "42"},
		{"paid", uint64(5), "42"},
		{"paid", sql.NullInt64{Int64: 5, Valid: true}, "42"},
	} {
		if err := sqlfence.Exec(t.Context(), db, token, update, args...); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
	if err := sqlfence.Exec(t.Context(), oneRow{}, token, ``, sql.Named("id", "42"), sql.Named("fence", 5)); err != nil {
		t.Errorf("named: %v", err)
	}
}

func TestExecReturnsErrors(t *testing.T) {
	db := open(t)
	if err := sqlfence.Exec(t.Context(), db, fence.Token{Number: 5}, `UPDATE nothing SET fence = $1`, 5); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a broken statement: %v", err)
	}
	if err := sqlfence.Compare(t.Context(), db, fence.Token{Number: 5}, `SELECT status FROM orders`); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a mark that is no number: %v", err)
	}
	uncounted := errors.New("not counted")
	if err := sqlfence.Exec(t.Context(), noCount{uncounted}, fence.Token{Number: 5}, ``, 5); !errors.Is(err, uncounted) {
		t.Errorf("a driver that does not count rows: %v", err)
	}
}

type noCount struct{ err error }

func (d noCount) ExecContext(context.Context, string, ...any) (sql.Result, error) { return d, nil }
func (d noCount) LastInsertId() (int64, error)                                    { return 0, d.err }
func (d noCount) RowsAffected() (int64, error)                                    { return 0, d.err }

// oneRow is a driver whose statements may have named arguments, and write a row each.
type oneRow struct{}

func (oneRow) ExecContext(context.Context, string, ...any) (sql.Result, error) {
	return driver.RowsAffected(1), nil
}

// The mark is in a table of its own, for a transaction that writes several rows.
func TestTransactionsUnderConcurrency(t *testing.T) {
	db := open(t)
	ctx := t.Context()
	var (
		wg   sync.WaitGroup
		most int64
	)
	write := func(token fence.Token) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := sqlfence.Exec(ctx, tx, token, raise, "order/42", token.Number); err != nil {
			return err
		}
		for range 2 {
			if _, err := tx.ExecContext(ctx, `INSERT INTO lines (order_id, item) VALUES ('42', $1)`, fmt.Sprint(token.Number)); err != nil {
				return err
			}
		}
		return tx.Commit()
	}
	for range 100 {
		n := rand.Int64N(1000) + 1
		most = max(most, n)
		wg.Go(func() {
			if err := write(fence.Token{Number: n}); err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	rows := must(db.Query(`SELECT CAST(item AS INTEGER) FROM lines ORDER BY number`))
	defer func() { _ = rows.Close() }()
	var written []int64
	for rows.Next() {
		var n int64
		if err := rows.Scan(&n); err != nil {
			t.Fatal(err)
		}
		written = append(written, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(written) {
		t.Errorf("an older token wrote after a newer one: %v", written)
	}
	if len(written)%2 != 0 || written[len(written)-1] != most {
		t.Errorf("written: %v; want whole transactions, the last with %d", written, most)
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
