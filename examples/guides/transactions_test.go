package guides_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// openDatabase makes the store's tables in the database of a pool, and opens the store.
func openDatabase(ctx context.Context, pool *pgxpool.Pool) (*pgstore.Store, error) {
	if err := pgstore.Migrate(ctx, pool); err != nil { // changes nothing that is new enough
		return nil, err
	}
	return pgstore.NewFromPool(pool)
}

// bookTransfer is an operation whose effect is in the database alone: a job, or a consumer of a queue.
func bookTransfer(
	ctx context.Context, transfers *guard.Guard, pool *pgxpool.Pool, id, account string, cents int64,
) (balance int64, err error) {
	op := guard.Operation{Key: id, Wait: 5 * time.Second}
	balance, _, err = pgstore.Do(ctx, transfers, op, pool, func(ctx context.Context, tx pgx.Tx) (balance int64, err error) {
		err = tx.QueryRow(ctx,
			`UPDATE accounts SET cents = cents + $1 WHERE id = $2 RETURNING cents`, cents, account).Scan(&balance)
		return balance, err
	})
	return balance, err
}

// bookTransferSQL is the same with database/sql.
func bookTransferSQL(
	ctx context.Context, transfers *guard.Guard, db *sql.DB, id, account string, cents int64,
) (balance int64, err error) {
	op := guard.Operation{Key: id, Wait: 5 * time.Second}
	balance, _, err = pgstore.DoSQL(ctx, transfers, op, db, func(ctx context.Context, tx *sql.Tx) (balance int64, err error) {
		err = tx.QueryRowContext(ctx,
			`UPDATE accounts SET cents = cents + $1 WHERE id = $2 RETURNING cents`, cents, account).Scan(&balance)
		return balance, err
	})
	return balance, err
}

// deposit is a handler behind the idempotency middleware, which has begun the attempt. crash stands for
// what may happen after the commit.
func deposit(pool *pgxpool.Pool, crash func()) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		user, _ := ctx.Value(depositor{}).(string) // authenticated, and the scope of the attempt
		attempt, ok := guard.FromContext(ctx)
		if !ok {
			http.Error(w, "this route needs an Idempotency-Key", http.StatusBadRequest)
			return
		}
		var body []byte
		header := http.Header{"Content-Type": {"application/json"}}
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var balance int64
			err := tx.QueryRow(ctx,
				`UPDATE accounts SET cents = cents + 100 WHERE id = $1 RETURNING cents`, user).Scan(&balance)
			if err != nil {
				return err
			}
			if body, err = json.Marshal(map[string]int64{"balance": balance}); err != nil {
				return err
			}
			return pgstore.Complete(ctx, tx, attempt, idempotency.Answer(http.StatusCreated, header, body)) // the last step
		})
		if err != nil {
			http.Error(w, "send it again, with the same key", http.StatusServiceUnavailable)
			return
		}
		crash()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}
}

// reserve reads, decides and writes under a lock that no other process gets before the commit.
func reserve(ctx context.Context, locks *lock.Locker, pool *pgxpool.Pool, seat string) error {
	return locks.Do(ctx, seat, func(ctx context.Context) error {
		lease, _ := lock.FromContext(ctx)
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := pgstore.Bind(ctx, tx, lease); err != nil { // before the first statement
				return err
			}
			var taken int
			if err := tx.QueryRow(ctx, `SELECT count(*) FROM seats WHERE id = $1`, seat).Scan(&taken); err != nil {
				return err
			}
			if taken > 0 {
				return errTaken
			}
			_, err := tx.Exec(ctx, `INSERT INTO seats (id) VALUES ($1)`, seat)
			return err
		})
	})
}

var errTaken = errors.New("the seat is taken")

func TestTransactions(t *testing.T) {
	ctx := t.Context()
	pool := must(pgxpool.New(ctx, postgrestest.Start(t).DSN()+"&idle_in_transaction_session_timeout=20000"))
	defer pool.Close()
	store := must(openDatabase(ctx, pool))
	defer func() { _ = store.Close() }()
	must(pool.Exec(ctx, `CREATE TABLE accounts (id text PRIMARY KEY, cents bigint NOT NULL)`))
	must(pool.Exec(ctx, `CREATE TABLE seats (id text)`)) // nothing in it refuses a second reservation
	must(pool.Exec(ctx, `INSERT INTO accounts VALUES ('alice', 0)`))
	balance := func() (cents int64) {
		t.Helper()
		if err := pool.QueryRow(ctx, `SELECT cents FROM accounts`).Scan(&cents); err != nil {
			t.Fatal(err)
		}
		return cents
	}

	t.Run("Do", func(t *testing.T) {
		transfers := must(guard.New(store, "transfers"))
		for range 3 {
			if cents, err := bookTransfer(ctx, transfers, pool, "t-1", "alice", 500); cents != 500 || err != nil {
				t.Errorf("%d, %v", cents, err)
			}
		}
		db := stdlib.OpenDBFromPool(pool)
		defer func() { _ = db.Close() }()
		for range 3 {
			if cents, err := bookTransferSQL(ctx, transfers, db, "t-2", "alice", 20); cents != 520 || err != nil {
				t.Errorf("database/sql: %d, %v", cents, err)
			}
		}
		failure := errors.New("failure")
		_, _, err := pgstore.Do(ctx, transfers, guard.Operation{Key: "t-3"}, pool, func(ctx context.Context, tx pgx.Tx) (int, error) {
			must(tx.Exec(ctx, `UPDATE accounts SET cents = 0`))
			return 0, failure
		})
		if !errors.Is(err, failure) || balance() != 520 {
			t.Errorf("after a failure: %v, a balance of %d", err, balance())
		}
		if cents, err := bookTransfer(ctx, transfers, pool, "t-3", "alice", 1); cents != 521 || err != nil {
			t.Errorf("the call after it: %d, %v", cents, err)
		}
	})

	t.Run("Complete", func(t *testing.T) {
		before := balance()
		deposits, err := guard.New(store, "deposits", guard.WithRerun()) // no effects but the transaction's
		if err != nil {
			t.Fatal(err)
		}
		crashes := 1
		handler := idempotency.New(deposits, nethttp.ScopeBy(nethttp.ByContext(depositor{})), policy.Required())(
			deposit(pool, func() {
				if crashes--; crashes == 0 {
					panic(http.ErrAbortHandler)
				}
			}))
		post := func(key string) *httptest.ResponseRecorder {
			defer func() { _ = recover() }()
			r := httptest.NewRequestWithContext(context.WithValue(ctx, depositor{}, "alice"), http.MethodPost, "/deposits", nil)
			r.Header.Set("Idempotency-Key", key)
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			return w
		}
		if w := post("k-1"); w != nil {
			t.Fatalf("the handler did not crash after its commit: %d", w.Code)
		}
		for range 2 {
			w := post("k-1")
			if w.Code != http.StatusCreated || w.Header().Get("Idempotency-Replayed") != "true" {
				t.Errorf("the repeat: %d %v %s", w.Code, w.Header(), w.Body)
			}
		}
		if w := post("k-2"); w.Code != http.StatusCreated || w.Header().Get("Idempotency-Replayed") != "" {
			t.Errorf("another request: %d %v %s", w.Code, w.Header(), w.Body)
		}
		if got := balance() - before; got != 200 {
			t.Errorf("%d cents of two deposits were booked", got)
		}
	})

	t.Run("Bind", func(t *testing.T) {
		locks := must(lock.New(store, "seats"))
		errs := make(chan error)
		for range 4 {
			go func() { errs <- reserve(ctx, locks, pool, "12A") }()
		}
		reserved := 0
		for range 4 {
			switch err := <-errs; {
			case err == nil:
				reserved++
			case !errors.Is(err, errTaken):
				t.Error(err)
			}
		}
		if reserved != 1 {
			t.Errorf("the seat was reserved %d times", reserved)
		}
	})

	// The lease ends in the middle of the transaction, as it does if its process is paused.
	t.Run("Bind of a paused holder", func(t *testing.T) {
		short := must(lock.New(store, "rooms", lock.WithTTL(time.Second), lock.WithoutRenewal()))
		others := must(lock.New(store, "rooms", lock.WithTTL(time.Second), lock.WithoutRenewal()))
		lease := must(short.Lock(ctx, "7"))
		tx := must(pool.Begin(ctx))
		if err := pgstore.Bind(ctx, tx, lease); err != nil {
			t.Fatal(err)
		}
		<-lease.Context().Done()
		time.Sleep(300 * time.Millisecond) // by now it has ended in the store, too
		if _, err := others.TryLock(ctx, "7"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("beside a bound transaction: %v", err)
		}
		if err := tx.Commit(ctx); err != nil {
			t.Errorf("the paused holder's commit: %v", err)
		}
		_ = must(others.Lock(ctx, "7")).Unlock(ctx)
	})
}

// depositor is the key of the authenticated user in a request's context.
type depositor struct{}
