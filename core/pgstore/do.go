package pgstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/internal/kept"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// Do runs fn exactly once in effect, and returns its value: fn's own or, with replayed true, that
// of an earlier call. fn runs in a transaction of the database. Its effects there, the record of
// the operation and its value are committed together. So no outcome is ever unknown: after a crash
// of the process, or of the server, either all of it is there or nothing is, and the next call
// returns the value or runs fn. Effects of fn elsewhere are not undone. [guard.Do] is for effects
// in other places, and [Complete] for an attempt that middleware has begun.
//
// g is a guard on a [Store], and pool a pool of the same database, whose user has the rights of
// [Grants]. It takes two round trips beside fn's: one begins the transaction and the operation, and
// one ends both. A value that is there already takes three. fn must not end the transaction: its
// Commit returns an error, and after its Rollback Do returns pgx.ErrTxCommitRollback.
//
// Another call for the operation waits, up to op.Wait, until the transaction has ended, and returns
// the value or runs fn itself. A call that waits holds no connection. It returns a
// *[guard.InFlightError] after op.Wait, at once if that is zero, and at once if op.MaxWaiting calls
// of this process wait for the operation already.
//
// The transaction has the isolation level that is the pool's default. If the database cannot
// serialize it, or ends it because of a deadlock, Do runs fn again, in another transaction, ten
// times at most.
//
// The value is kept as JSON, if the JSON decodes to an equal value, as for guard.Do. Otherwise
// nothing is committed, and the error matches [guard.ErrEncoding]; if no value of T survives, the
// call is refused with it before fn runs. If the value is larger than the guard keeps
// ([guard.WithMaxResult]), this call returns it, and later ones return a *[guard.NotRetainedError].
//
// If fn returns an error or panics, the transaction is rolled back, and the next call runs the
// operation. Other errors are:
//   - those of [guard.Guard.Begin]: nothing was done;
//   - an error that the commit has returned: everything was undone;
//   - one that matches store.ErrUnconfirmed, if the commit gets no reply, and ten seconds later it
//     is not certain whether it was, or will be, carried out. Another call for the operation
//     returns the value, or runs fn, when the transaction has ended.
func Do[T any](
	ctx context.Context, g *guard.Guard, op guard.Operation, pool *pgxpool.Pool,
	fn func(ctx context.Context, tx pgx.Tx) (T, error),
) (value T, replayed bool, err error) {
	if g == nil || pool == nil {
		return value, false, errors.New("pgstore: Do: nil guard or pool")
	}
	return do(ctx, g, op, func() (connection, func(context.Context) (T, error)) {
		c := &pgxConnection{pool: pool}
		return c, func(ctx context.Context) (T, error) { return fn(ctx, c.tx) }
	})
}

// DoSQL is [Do] with database/sql, and a driver for PostgreSQL. It takes two round trips more. fn
// must not end the transaction: its effects would be committed without a record.
func DoSQL[T any](
	ctx context.Context, g *guard.Guard, op guard.Operation, db *sql.DB,
	fn func(ctx context.Context, tx *sql.Tx) (T, error),
) (value T, replayed bool, err error) {
	if g == nil || db == nil {
		return value, false, errors.New("pgstore: DoSQL: nil guard or database")
	}
	return do(ctx, g, op, func() (connection, func(context.Context) (T, error)) {
		c := &sqlConnection{db: db}
		return c, func(ctx context.Context) (T, error) { return fn(ctx, c.tx) }
	})
}

// do is Do. connect returns a connection, and fn bound to its transaction.
func do[T any](
	ctx context.Context, g *guard.Guard, op guard.Operation, connect func() (connection, func(context.Context) (T, error)),
) (value T, replayed bool, err error) {
	if err := kept.Check[T](); err != nil {
		return value, false, fmt.Errorf("pgstore: Do: %w", err)
	}
	for try := range statement.Rollbacks {
		if try > 0 {
			backoff.Sleep(ctx, rand.N(time.Duration(try)*5*time.Millisecond))
		}
		conn, fn := connect()
		value, replayed, err = doOnce(ctx, g, op, conn, fn)
		again := statement.WasRolledBack(err) || isScopeFull(err) || statement.IsCode(err, recordExists)
		if !again || ctx.Err() != nil {
			break
		}
	}
	return value, replayed, err
}

// recordExists is the code of the error of a transaction whose operation was begun in the store
// during it.
const recordExists = "LK003"

func doOnce[T any](
	ctx context.Context, g *guard.Guard, op guard.Operation, conn connection, fn func(context.Context) (T, error),
) (value T, replayed bool, err error) {
	t := &transaction{conn: conn}
	a, result, err := g.Begin(context.WithValue(ctx, transactionKey{}, t), op)
	switch {
	case err != nil:
		return value, false, err
	case result != nil:
		if err := json.Unmarshal(result.Data, &value); err != nil {
			return value, true, fmt.Errorf("pgstore: Do: decode the stored result: %w", err)
		}
		return value, true, nil
	}
	committed := false
	defer func() { // fn may have panicked
		if !committed {
			t.end()
			_ = a.Abandon(ctx)
		}
		t.forget()
	}()
	if t.store == nil {
		return value, false, errors.New("pgstore: Do: the guard's store is not a *pgstore.Store")
	}
	if t.outside {
		if err := t.beginOutside(ctx, a); err != nil {
			return value, false, err
		}
	}
	if value, err = fn(a.Context()); err != nil {
		return value, false, err
	}
	data, err := kept.Encode(value)
	if err != nil {
		return value, false, fmt.Errorf("pgstore: Do: nothing is committed: %w", err)
	}
	err = a.CompleteBy(ctx, guard.Result{Data: data}, t.commit)
	committed = err == nil
	return value, false, err
}

// beginOutside begins the transaction of an attempt that has taken over in the store.
func (t *transaction) beginOutside(ctx context.Context, a *guard.Attempt) error {
	if err := a.MarkClean(ctx); err != nil { // should it die, its transaction is rolled back
		return err
	}
	if err := t.conn.begin(ctx, "", nil); err != nil {
		t.conn.rollback()
		return statement.Explain(err, false)
	}
	t.open = true
	return nil
}
