package pgstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// TestPushesOfOthers has one process wait for what another one does: a push reaches it, and it does
// not wait until it checks.
func TestPushesOfOthers(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	one, other := openTestStore(t, dsn), openTestStore(t, dsn)
	n := 0
	attempt := func(ctx context.Context) (end func() error, wait func() error) {
		ref := store.AttemptRef{OperationRef: store.OperationRef{Guard: "orders", ID: fmt.Sprint("operation ", n)}, Owner: "one"}
		_, err := one.BeginOperation(ctx, store.BeginRequest{AttemptRef: ref, Fingerprint: "f", Lease: time.Minute, Retention: time.Hour})
		must(t, err)
		return func() error {
			_, err := one.SettleOperation(ctx, store.SettleRequest{AttemptRef: ref, State: store.Completed, Number: 1, Retention: time.Hour})
			return err
		}, func() error { return other.AwaitOperation(ctx, ref.OperationRef) }
	}
	latch := func(ctx context.Context) (end func() error, wait func() error) {
		latch := store.LatchRequest{Name: fmt.Sprint("latch ", n), Count: 1, TTL: time.Minute}
		return func() error {
			_, err := one.CountDownLatch(ctx, latch, "p")
			return err
		}, func() error { return other.AwaitLatch(ctx, latch) }
	}
	task := func(ctx context.Context) (end func() error, wait func() error) {
		queue := fmt.Sprint("queue ", n)
		return func() error {
			_, err := one.PutTask(ctx, store.PutTaskRequest{Queue: queue, Key: "k", ID: "of a put"})
			return err
		}, func() error { return other.AwaitTasks(ctx, queue, -1) }
	}
	for what, begin := range map[string]func(ctx context.Context) (end func() error, wait func() error){
		"an attempt": attempt, "a latch": latch, "a task": task,
	} {
		inTime(t, what+": the push", time.Second, func() time.Duration {
			n++
			end, wait := begin(t.Context())
			done := make(chan error, 1)
			go func() { done <- wait() }()
			eventually(t, "a registered inbox", func() bool {
				n := query[int](t, one, "SELECT count(*) FROM (SELECT FROM lk.operations WHERE state = 'F' AND inboxes <> '{}' "+
					"UNION ALL SELECT FROM lk.latch_waiters UNION ALL SELECT FROM lk.task_waiters) waiting")
				return n > 0 && other.db.Listens()
			})
			time.Sleep(50 * time.Millisecond) // the check that follows the subscription
			began := time.Now()
			must(t, end())
			if err := <-done; err != nil {
				t.Errorf("%s: %v", what, err)
			}
			return time.Since(began)
		})
	}
}

// TestSweep removes what has expired, and nothing else.
func TestSweep(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	begin := func(id, scope string, retention time.Duration) {
		t.Helper()
		ref := store.AttemptRef{OperationRef: store.OperationRef{Guard: "orders", ID: id, Scope: scope}, Owner: "owner of " + id}
		_, err := s.BeginOperation(t.Context(), store.BeginRequest{AttemptRef: ref, Fingerprint: "f", Lease: time.Millisecond, Retention: retention})
		if err == nil {
			_, err = s.RecordStep(t.Context(), store.StepRequest{AttemptRef: ref, Step: store.Step{Name: "step"}})
		}
		if err == nil {
			_, err = s.CountDownLatch(t.Context(), store.LatchRequest{Name: id, TTL: retention}, "p")
		}
		if err == nil {
			must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text(`WITH
				b AS (INSERT INTO lk.buried_tasks SELECT $1, '', '', 1, 1, at, at + $2, '', '' FROM lk.now_us() at),
				c AS (INSERT INTO lk.cancelled_tasks SELECT $1, '', '', NULL, 'A', at + $2 FROM lk.now_us() at),
				w AS (INSERT INTO lk.task_waiters SELECT $1, '', 0, at + $2 FROM lk.now_us() at)
				SELECT`), id, retention.Microseconds()).Scan())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, scope := range []string{"", "alice"} {
		begin("short"+scope, scope, 50*time.Millisecond)
		begin("long"+scope, scope, time.Hour)
	}
	time.Sleep(100 * time.Millisecond)
	count := func(table string) (n int) {
		t.Helper()
		if err := s.db.Pool().QueryRow(t.Context(), "SELECT count(*) FROM lk."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.sweepOnce(t.Context())
	if _, err := s.db.Pool().Exec(t.Context(), "UPDATE lk.latches SET ends = 1 WHERE ends < lk.now_us()"); err != nil { // long ago
		t.Fatal(err)
	}
	s.sweepOnce(t.Context())
	for table, want := range map[string]int{"operations": 2, "operation_steps": 2, "scopes": 1, "latches": 2, "latch_participants": 2,
		"buried_tasks": 2, "cancelled_tasks": 2, "task_waiters": 2} {
		if n := count(table); n != want {
			t.Errorf("%s has %d rows after the sweep, want %d", table, n, want)
		}
	}
}
