package pgstore

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/delaytest"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestTasksInAStorm(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	migrateIn(t, server.DSN())
	quiet := new(logbook).option()
	open := func() (store.Store, *faultproxy.Proxy) {
		proxy := postgrestest.NewProxy(t, server.Addr())
		return openTestStore(t, postgrestest.Through(server.DSN(), proxy.Addr()), WithTimeout(brisk), quiet), proxy
	}
	tasks := 2_000
	if testpace.Raced {
		tasks /= 2
	}
	delaytest.Storm(t, tasks, openTestStore(t, server.DSN(), quiet), open, func() {}, server.Restart, func() {})
}

const tasksDSN = "PGSTORE_TEST_TASKS_DSN"

// TestTaskWorker is a process of TestTasksOfKilledProcesses.
func TestTaskWorker(t *testing.T) {
	dsn := delaytest.Worker(t, tasksDSN)
	pool, err := pgxpool.New(t.Context(), dsn)
	must(t, err)
	t.Cleanup(pool.Close)
	delaytest.Work(t, openTestStore(t, dsn, new(logbook).option()), func(ctx context.Context, task *delay.Task) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO public.effects VALUES ($1)", task.Key()); err != nil {
				return err
			}
			return Finish(ctx, tx, task)
		})
	})
}

// Processes are killed and stopped. A task has its effect once, without a guard, in the transaction
// that ends the task.
func TestTasksOfKilledProcesses(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	migrateIn(t, server.DSN())
	administer(t, server.DSN(), "CREATE TABLE effects (task text PRIMARY KEY)") // two of a task would fail, again and again
	tasks := 2_000
	if testpace.Raced {
		tasks /= 4
	}
	st := openTestStore(t, server.DSN(), new(logbook).option())
	buried := delaytest.Processes(t, tasks, st, "TestTaskWorker", tasksDSN+"="+server.DSN())
	if n := query[int](t, st, "SELECT count(*) FROM public.effects"); n != tasks || len(buried) > 0 {
		t.Errorf("%d of %d tasks had their effect, and %d are buried", n, tasks, len(buried))
	}
}

func TestTasksAreThoseInMemory(t *testing.T) {
	t.Parallel()
	delaytest.Model(t, newTestStore(t))
}
