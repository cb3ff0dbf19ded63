package pgstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

func TestRecords(t *testing.T) {
	t.Parallel()
	storetest.Records(t, runner(migrated(t)))
}

func TestLatches(t *testing.T) {
	t.Parallel()
	storetest.Latches(t, runner(migrated(t)))
}

// runner runs the tests of a contract beside each other, on stores of one database.
func runner(dsn string, opts ...Option) storetest.Runner[*Store] {
	return func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		s := openTestStore(t, dsn, append([]Option{WithConnections(4)}, opts...)...)
		test(t, storetest.Harness[*Store]{Store: s, Advance: time.Sleep})
	}
}

// The delayed begin of an attempt that was abandoned before it arrived starts nothing, though the
// record has last changed long ago.
func TestABeginBehindItsAbandon(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	ref := store.OperationRef{Guard: "orders", ID: strings.Repeat("o", 22)}
	begin := func(owner string) store.BeginReply {
		t.Helper()
		reply, err := s.BeginOperation(t.Context(), store.BeginRequest{
			AttemptRef: store.AttemptRef{OperationRef: ref, Owner: owner}, Fingerprint: strings.Repeat("f", 43),
			Lease: time.Minute, Retention: time.Hour,
		})
		must(t, err)
		return reply
	}
	dead, late := strings.Repeat("d", 22), strings.Repeat("l", 22)
	begin(dead)
	owned, err := s.MarkOperation(t.Context(), store.MarkRequest{
		AttemptRef: store.AttemptRef{OperationRef: ref, Owner: dead}, Effects: store.NoEffects, Seq: 1,
	})
	if must(t, err); !owned {
		t.Fatal("the attempt owns nothing")
	}
	query[int](t, s, "UPDATE lk.operations SET changed = changed - 3600000000, lease_ends = 0 RETURNING 1")
	if owned, err = s.AbandonOperation(t.Context(), store.AttemptRef{OperationRef: ref, Owner: late}); err != nil || owned {
		t.Fatal(owned, err)
	}
	if reply := begin(late); reply.Outcome != store.Refused {
		t.Errorf("a begin behind its abandon: %+v", reply)
	}
	if reply := begin(strings.Repeat("n", 22)); reply.Outcome != store.Started || reply.Number != 2 {
		t.Errorf("the next one: %+v", reply)
	}
}

// A request that a full scope refuses writes nothing, so that one subject cannot fill the table with
// rows that were undone: only the first one does.
func TestAFullScopeIsRefusedWithoutAWrite(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "autovacuum=off") // nothing else takes transaction IDs
	migrateIn(t, server.DSN())
	s := openTestStore(t, server.DSN())
	begin := func(id string) store.BeginOutcome {
		t.Helper()
		reply, err := s.BeginOperation(t.Context(), store.BeginRequest{
			AttemptRef: store.AttemptRef{
				OperationRef: store.OperationRef{Guard: "orders", Scope: "subject", ID: id}, Owner: "owner " + id,
			},
			Fingerprint: "f", Lease: time.Minute, Retention: time.Hour, MaxRecords: 2,
		})
		must(t, err)
		return reply.Outcome
	}
	transactions := func() int64 { return query[int64](t, s, "SELECT pg_current_xact_id()::text::bigint") }
	for _, id := range []string{"one", "two"} {
		if got := begin(id); got != store.Started {
			t.Fatalf("%s: outcome %d", id, got)
		}
	}
	before := transactions()
	for range 20 {
		if got := begin("three"); got != store.ScopeFull {
			t.Fatalf("the third: outcome %d", got)
		}
	}
	if wrote := transactions() - before - 1; wrote > 1 {
		t.Errorf("20 refused requests took %d transactions that write", wrote)
	}
	owned, err := s.AbandonOperation(t.Context(), store.AttemptRef{
		OperationRef: store.OperationRef{Guard: "orders", Scope: "subject", ID: "one"}, Owner: "owner one",
	})
	if must(t, err); !owned {
		t.Fatal("the attempt owns nothing")
	}
	if got := begin("three"); got != store.Started {
		t.Errorf("with room again: outcome %d", got)
	}
}

// A begin that comes behind the completion starts nothing, also where what it has read before said that the
// operation runs: the function that takes over looks again.
func TestABeginBehindTheCompletion(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	request := func(owner string) store.BeginRequest {
		return store.BeginRequest{
			AttemptRef:  store.AttemptRef{OperationRef: store.OperationRef{Guard: "orders", ID: strings.Repeat("o", 22)}, Owner: strings.Repeat(owner, 22)},
			Fingerprint: strings.Repeat("f", 43), Lease: time.Minute, Retention: time.Hour, Rerun: true,
		}
	}
	first, late := request("a"), request("b")
	reply, err := s.BeginOperation(t.Context(), first)
	must(t, err)
	owned, err := s.SettleOperation(t.Context(), store.SettleRequest{
		AttemptRef: first.AttemptRef, Fingerprint: first.Fingerprint, Number: reply.Number, State: store.Completed, Status: 201, Retention: time.Hour,
	})
	if must(t, err); !owned {
		t.Fatal("the attempt owns nothing")
	}
	got, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opBeginOperation, Writes: true}, func(ctx context.Context, c *pgx.Conn) (begun, error) {
		return s.begin(ctx, c, &late, "rerun")
	})
	if must(t, err); got.outcome != "settled" || got.status != 201 {
		t.Errorf("%+v", got)
	}
}
