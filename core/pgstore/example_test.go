package pgstore_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

// A service with its store, from its start to its end.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	if err := pgstore.Migrate(ctx, pool); err != nil { // or run what pgstore.Schema returns
		panic(err)
	}
	st, err := pgstore.NewFromPool(pool) // with connections of its own, as many as WithConnections says
	if err != nil {
		panic(err)
	}
	defer func() { _ = st.Close() }()

	findings, err := st.Check(ctx)
	if err != nil {
		slog.Error("PostgreSQL cannot be checked", "error", err)
	}
	for _, finding := range findings {
		slog.Warn("PostgreSQL weakens a promise", "finding", finding)
	}

	// At the end, when the server takes no more requests:
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := st.Shutdown(ctx); err != nil {
		slog.Error("something is left in the store until it expires", "error", err)
	}
}

// The record of the operation, its effect and its result are one transaction: no outcome is unknown.
func ExampleDo() {
	place := func(ctx context.Context, orders *guard.Guard, pool *pgxpool.Pool, user, key string) (number int, err error) {
		op := guard.Operation{Scope: user, Key: key, Wait: 2 * time.Second} // user: the authenticated one
		number, replayed, err := pgstore.Do(ctx, orders, op, pool, func(ctx context.Context, tx pgx.Tx) (number int, err error) {
			// Only with tx: what is done elsewhere, such as a payment, is not undone by a rollback.
			err = tx.QueryRow(ctx, `INSERT INTO orders (customer) VALUES ($1) RETURNING number`, user).Scan(&number)
			return number, err
		})
		if errors.Is(err, guard.ErrInFlight) {
			return 0, err // another request with the key has been running for 2 s: try again later
		}
		slog.Info("ordered", "number", number, "replayed", replayed)
		return number, err
	}
	_ = place
}

// A handler behind the idempotency middleware completes the attempt in its own transaction, and then
// writes the same answer, which idempotency.Answer of its framework has encoded. Build the guard
// with WithRerun: an attempt that died has had no effects.
func ExampleComplete() {
	order := func(ctx context.Context, pool *pgxpool.Pool, user string, answer guard.Result) error {
		attempt, ok := guard.FromContext(ctx)
		if !ok {
			return errors.New("idempotency is not in front")
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO orders (customer) VALUES ($1)`, user); err != nil {
				return err
			}
			return pgstore.Complete(ctx, tx, attempt, answer) // the last step before the commit
		})
	}
	_ = order
}

// Until its transaction ends, a bound lock is granted to no other request, even if its holder was paused
// for longer than the lease. The transaction is READ COMMITTED, on a connection with an
// idle_in_transaction_session_timeout.
func ExampleBind() {
	debit := func(ctx context.Context, accounts *lock.Locker, pool *pgxpool.Pool, id string, cents int64) error {
		return accounts.Do(ctx, id, func(ctx context.Context) error {
			lease, _ := lock.FromContext(ctx)
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // which ends before the lock is released
				if err := pgstore.Bind(ctx, tx, lease); err != nil { // before the first statement
					return err
				}
				_, err := tx.Exec(ctx, `UPDATE accounts SET cents = cents - $1 WHERE id = $2`, cents, id)
				return err
			})
		})
	}
	_ = debit
}
