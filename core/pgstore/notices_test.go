package pgstore

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// TestPushesOfOthers has one process wait for what another one does: it is told, and does not wait
// until it checks.
func TestPushesOfOthers(t *testing.T) {
	dsn := migrated(t)
	one, other := openTestStore(t, dsn), openTestStore(t, dsn)
	ref := store.AttemptRef{OperationRef: store.OperationRef{Guard: "orders", ID: "the-operation-of-a-test"}, Owner: "one"}
	begin := store.BeginRequest{AttemptRef: ref, Fingerprint: "f", Lease: time.Minute, Retention: time.Hour}
	latch := store.LatchRequest{Name: "latch", Count: 1, TTL: time.Minute}
	for _, c := range []struct {
		what       string
		begin, end func(ctx context.Context) error
		wait       func(ctx context.Context) error
	}{
		{
			"an attempt", func(ctx context.Context) error { _, err := one.BeginOperation(ctx, begin); return err },
			func(ctx context.Context) error {
				_, err := one.SettleOperation(ctx, store.SettleRequest{AttemptRef: ref, State: store.Completed, Number: 1, Retention: time.Hour})
				return err
			},
			func(ctx context.Context) error { return other.AwaitOperation(ctx, ref.OperationRef) },
		},
		{
			"a latch", func(context.Context) error { return nil },
			func(ctx context.Context) error { _, err := one.CountDownLatch(ctx, latch, "p"); return err },
			func(ctx context.Context) error { return other.AwaitLatch(ctx, latch) },
		},
	} {
		if err := c.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- c.wait(t.Context()) }()
		waitFor(t, "a registered inbox", func() bool {
			var n int
			err := one.pool.QueryRow(t.Context(), "SELECT count(*) FROM (SELECT FROM lk.operations WHERE state = 'F' AND inboxes <> '{}' "+
				"UNION ALL SELECT FROM lk.latch_waiters) waiting").Scan(&n)
			return err == nil && n > 0 && other.listener.subscribed.Load()
		})
		time.Sleep(50 * time.Millisecond) // the check that follows the subscription
		before := time.Now()
		if err := c.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if took := time.Since(before); took > time.Second {
			t.Errorf("%s: told after %v", c.what, took)
		}
	}
}

func waitFor(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for range 1000 {
		if happened() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("no %s", what)
}

// TestSweep removes what has expired, and nothing else.
func TestSweep(t *testing.T) {
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
		if err := s.pool.QueryRow(t.Context(), "SELECT count(*) FROM lk."+table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	s.sweepOnce(t.Context())
	if _, err := s.pool.Exec(t.Context(), "UPDATE lk.latches SET ends = 1 WHERE ends < lk.now_us()"); err != nil { // long ago
		t.Fatal(err)
	}
	s.sweepOnce(t.Context())
	for table, want := range map[string]int{"operations": 2, "operation_steps": 2, "scopes": 1, "latches": 2, "latch_participants": 2} {
		if n := count(table); n != want {
			t.Errorf("%s has %d rows after the sweep, want %d", table, n, want)
		}
	}
}
