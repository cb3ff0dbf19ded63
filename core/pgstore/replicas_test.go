package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// replicated is a server that waits for a replica.
type replicated struct {
	t                *testing.T
	primary, replica *postgrestest.Server
	receiver         *os.Process // of the replica: what receives the primary's log
}

func newReplicated(t *testing.T) *replicated {
	t.Helper()
	primary := postgrestest.Start(t)
	migrateIn(t, primary.DSN())
	r := &replicated{t: t, primary: primary, replica: primary.Replica()}
	administer(t, primary.DSN(), "CREATE TABLE orders (id text, key text)", "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
	admin, replica := connect(t, primary.DSN()), connect(t, r.replica.DSN())
	eventually(t, "the primary waits for the replica", func() bool {
		var n int
		must(t, admin.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'").Scan(&n))
		return n == 1
	})
	var pid int
	must(t, replica.QueryRow(t.Context(), "SELECT pid FROM pg_stat_wal_receiver").Scan(&pid))
	var err error
	r.receiver, err = os.FindProcess(pid)
	must(t, err)
	t.Cleanup(r.resume)
	return r
}

// silence has the replica receive nothing more.
func (r *replicated) silence() { must(r.t, r.receiver.Signal(syscall.SIGSTOP)) }

func (r *replicated) resume() { _ = r.receiver.Signal(syscall.SIGCONT) }

// failOver replaces the primary by the replica, without what it has not received.
func (r *replicated) failOver() {
	r.t.Helper()
	r.primary.Kill()
	must(r.t, r.receiver.Kill())
	eventually(r.t, "the replica works without its receiver", func() bool {
		conn, err := pgx.Connect(r.t.Context(), r.replica.DSN())
		if err == nil {
			err = errors.Join(conn.Ping(r.t.Context()), conn.Close(r.t.Context()))
		}
		return err == nil
	})
	r.replica.Promote()
}

// A result that was returned, fn's own or a replay, is there after a failover, though the replica
// was silent, calls have ended before their commits, and those of the application were canceled.
func TestResultsThatWereToldSurviveAFailover(t *testing.T) {
	t.Parallel()
	r := newReplicated(t)
	s := openShopOf(t, r.primary.DSN(), WithTimeout(hasty))
	told := make(map[string]bool)
	tell := func(what, key string, err error) {
		told[key] = told[key] || err == nil
		t.Logf("%s, %s: %v", what, key, err)
	}
	briefly := func(f func(ctx context.Context)) {
		ctx, cancel := context.WithTimeout(t.Context(), hasty)
		defer cancel()
		f(ctx)
	}
	do := func(key string) (err error) {
		briefly(func(ctx context.Context) {
			_, _, err = Do(ctx, s.guard, orderOp(key), s.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
				_, err := tx.Exec(ctx, insertOrder, key, key)
				return key, err
			})
		})
		return err
	}
	if err := do("before"); err != nil {
		t.Fatal(err)
	}
	tell("Do", "before", nil)
	completed, apart := s.begin(orderOp("completed")), s.begin(orderOp("apart"))
	doSQL := func(key string) (err error) {
		briefly(func(ctx context.Context) {
			_, _, err = DoSQL(ctx, s.guard, orderOp(key), s.db, func(ctx context.Context, tx *sql.Tx) (string, error) {
				_, err := tx.ExecContext(ctx, insertOrder, key, key)
				return key, err
			})
		})
		return err
	}
	tx, err := s.complete(completed, "completed", "completed")
	must(t, err)

	r.silence()
	tell("Do", "during", do("during"))
	tell("DoSQL", "sql", doSQL("sql"))
	briefly(func(ctx context.Context) { _ = tx.Commit(ctx) }) // which cancels it
	tx, err = s.complete(completed, "completed", "completed") // the caller runs it again
	if err == nil {
		t.Error("completed again")
	} else if errors.Is(err, guard.ErrSettled) {
		err = nil
	}
	tell("Complete", "completed", err)
	must(t, tx.Rollback(t.Context()))
	tell("guard.Complete", "apart", apart.Complete(t.Context(), resultOf("apart")))
	s = openShopOf(t, r.primary.DSN(), WithTimeout(hasty)) // another process, without what this one knows
	for range 3 {
		for _, key := range []string{"during", "sql", "completed", "apart"} {
			briefly(func(ctx context.Context) {
				_, result, err := s.guard.Begin(ctx, orderOp(key))
				if err == nil && result == nil {
					err = errors.New("it runs again")
				}
				tell("Begin", key, err)
			})
		}
	}
	if !told["before"] || told["during"] || told["sql"] || told["completed"] || told["apart"] {
		t.Errorf("told: %v", told)
	}

	r.failOver()
	after := openShop(t, r.replica.DSN(), "")
	for key, is := range told {
		if _, result, err := after.guard.Begin(t.Context(), orderOp(key)); is && (err != nil || result == nil) {
			t.Errorf("%s is gone: %v, %v", key, result, err)
		}
	}
}

// A commit whose wait for a replica was ended is reported when the replica has it, and the store
// continues.
func TestAReplicaThatReturns(t *testing.T) {
	t.Parallel()
	r := newReplicated(t)
	s := openShopOf(t, r.primary.DSN(), WithTimeout(hasty))
	op := orderOp("k")
	a := s.begin(op)
	r.silence()
	tx, err := s.complete(a, "k", "k")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), hasty)
	_ = tx.Commit(ctx)
	cancel()
	other := connect(t, r.primary.DSN())
	eventually(t, "the commit is seen", func() bool {
		var n int
		must(t, other.QueryRow(t.Context(), "SELECT count(*) FROM orders").Scan(&n))
		return n == 1
	})
	for range 3 {
		if _, result, err := s.guard.Begin(t.Context(), op); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("without the replica: %v, %v", result, err)
		}
	}
	r.resume()
	eventually(t, "the result is told", func() bool {
		_, result, err := s.guard.Begin(t.Context(), op)
		return err == nil && result != nil && string(result.Data) == "k"
	})
	if _, _, err := s.order(orderOp("next"), "next", nil); err != nil {
		t.Error(err)
	}
	eventually(t, "no connection is left behind", func() bool { return s.store.db.Pool().Stat().AcquiredConns() == 0 })
}

// openShopOf opens a shop on a database that has its tables.
func openShopOf(t *testing.T, dsn string, opts ...Option) *shop {
	t.Helper()
	s := openShop(t, dsn, "")
	_ = s.store.Close()
	s.store = openTestStore(t, dsn, opts...)
	var err error
	s.guard, err = guard.New(s.store, "orders")
	must(t, err)
	return s
}
