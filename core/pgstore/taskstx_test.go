package pgstore

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// awaitsTasks begins an AwaitTasks that is registered. The channel has its end.
func awaitsTasks(t *testing.T, s *Store) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- s.AwaitTasks(t.Context(), "orders", -1) }()
	eventually(t, "the inbox is registered", func() bool {
		return s.db.Listens() && query[int](t, s, "SELECT count(*) FROM lk.task_waiters WHERE ends > lk.now_us()") > 0
	})
	return ended
}

// The commit of a transaction that has put a task wakes waiters, also the ones that have begun to
// wait since the put. A rollback wakes none, and the task is never taken.
func TestPutTaskIn(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(s *shop, req store.PutTaskRequest, commit bool, meanwhile func()){
		"pgx": func(s *shop, req store.PutTaskRequest, commit bool, meanwhile func()) {
			tx, err := s.pool.Begin(t.Context())
			must(t, err)
			wantOutcome(t, store.TaskCreated)(s.store.putTaskIn(t.Context(), tx, req))
			wantOutcome(t, store.TaskCreated)(s.store.putTaskIn(t.Context(), tx, req)) // a repeat
			meanwhile()
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			must(t, end(t.Context()))
		},
		"database/sql": func(s *shop, req store.PutTaskRequest, commit bool, meanwhile func()) {
			tx, err := s.db.BeginTx(t.Context(), nil)
			must(t, err)
			wantOutcome(t, store.TaskCreated)(s.store.putTaskIn(t.Context(), SQLTx(tx), req))
			meanwhile()
			end := tx.Rollback
			if commit {
				end = tx.Commit
			}
			must(t, end())
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t) // a late push of another test would end a wait
			one, other := s.store, openTestStore(t, s.pool.Config().ConnString())
			var woken <-chan error
			put(s, putOf("undone", 0), false, func() { woken = awaitsTasks(t, other) })
			if n := query[int](t, one, "SELECT count(*) FROM lk.task_waiters") +
				2*query[int](t, one, "SELECT count(*) FROM lk.tasks"); n != 1 {
				t.Errorf("a rollback has left %d rows: the inbox is not registered, or there is a task", n)
			}
			takesTasks(t, other, 0)
			select {
			case err := <-woken:
				t.Fatalf("a rollback woke a process: %v", err)
			default:
			}
			inTime(t, "the wait for a commit", time.Second, func() time.Duration {
				var began time.Time
				put(s, putOf(rand.Text(), 0), true, func() {
					takesTasks(t, other, 0)
					began = time.Now()
				})
				must(t, <-woken)
				took := time.Since(began)
				settlesAll(t, other, takesTasks(t, other, 1), store.TaskDone, 0)
				woken = awaitsTasks(t, other)
				return took
			})
			puts(t, one, putOf("last", 0), store.TaskCreated)
			must(t, <-woken)
			settlesAll(t, one, takesTasks(t, one, 1), store.TaskDone, 0)
			if n := query[int](t, one, "SELECT count(*) FROM lk.task_wakes"); n != 0 {
				t.Errorf("%d wakes are left", n)
			}
		})
	}
}

func wantOutcome(t *testing.T, want store.PutOutcome) func(store.PutTaskReply, error) {
	return func(reply store.PutTaskReply, err error) {
		t.Helper()
		if err != nil || reply.Outcome != want {
			t.Errorf("PutTaskIn: %+v, %v, want outcome %d", reply, err, want)
		}
	}
}

// The rollback of a savepoint undoes its put. A second put in the transaction counts.
func TestPutTaskInASavepoint(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	woken := awaitsTasks(t, s.store)
	must(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		point, err := tx.Begin(t.Context())
		must(t, err)
		wantOutcome(t, store.TaskCreated)(s.store.putTaskIn(t.Context(), point, putOf("undone", 0)))
		must(t, point.Rollback(t.Context()))
		wantOutcome(t, store.TaskCreated)(s.store.putTaskIn(t.Context(), tx, putOf("done", 0)))
		return nil
	}))
	must(t, <-woken)
	if refs := takesTasks(t, s.store, 1); refs[0].Key != "done" {
		t.Errorf("%q was taken", refs[0].Key)
	}
	takesTasks(t, s.store, 0)
}

// A cancel in a transaction holds from its commit on, and no worker takes the task before. A
// rollback undoes it.
func TestCancelTaskIn(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	puts(t, s.store, putOf("k", 0), store.TaskCreated)
	cancel := func(end func(pgx.Tx, context.Context) error) {
		tx, err := s.pool.Begin(t.Context())
		must(t, err)
		outcome, err := s.store.cancelTaskIn(t.Context(), tx, store.CancelTaskRequest{Queue: "orders", Key: "k", ID: rand.Text()[:22]})
		if err != nil || outcome != store.TaskPrevented {
			t.Errorf("CancelTaskIn: %d, %v", outcome, err)
		}
		if refs, reply, err := takeTasks(t.Context(), s.store, 1, time.Minute); err != nil || len(refs) > 0 || reply.Next <= 0 {
			t.Errorf("before the end of the transaction %d tasks were taken, and the next is due in %v: %v", len(refs), reply.Next, err)
		}
		must(t, end(tx, t.Context()))
	}
	cancel(pgx.Tx.Rollback)
	must(t, s.store.AwaitTasks(t.Context(), "orders", -1))
	settlesAll(t, s.store, takesTasks(t, s.store, 1), store.TaskDone, 0)
	puts(t, s.store, putOf("k", 0), store.TaskCreated)
	cancel(pgx.Tx.Commit)
	if _, reply, err := takeTasks(t.Context(), s.store, 1, time.Minute); err != nil || reply.Next >= 0 {
		t.Errorf("after the commit the next task is due in %v: %v", reply.Next, err)
	}
}
