package pgstore

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/postgrestest"
)

// slowCommits starts a server, with the store's schema and counts, whose commits take so long.
func slowCommits(t testing.TB, commit time.Duration) (dsn string) {
	t.Helper()
	server := postgrestest.Start(t, "fsync=on", "commit_siblings=0", fmt.Sprintf("commit_delay=%d", commit.Microseconds()))
	install(t, server.DSN())
	return server.DSN()
}

// beginOf returns a request to begin an operation, as a caller of its own makes it.
func beginOf(key, scope string, n int) store.BeginRequest {
	return store.BeginRequest{
		AttemptRef:  store.AttemptRef{OperationRef: store.OperationRef{Guard: "g", Scope: scope, ID: key}, Owner: fmt.Sprint(key, n)},
		Fingerprint: "f", Lease: time.Minute, Retention: time.Hour, MaxRecords: 10000,
	}
}

// A server whose commits are slow answers. A duplicate that waits for one is told that the operation is
// in flight: were that an outage, it would run unprotected, beside the first one.
func TestDuplicatesDuringSlowCommits(t *testing.T) {
	t.Parallel()
	for _, commit := range []time.Duration{time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		dsn := slowCommits(t, commit)
		for _, scope := range []string{"", "s"} {
			for _, abandoned := range []bool{false, true} {
				t.Run(fmt.Sprintf("of %v, scope %q, abandoned before: %v", commit, scope, abandoned), func(t *testing.T) {
					t.Parallel()
					s := openTestStore(t, dsn)
					for key := range 10 {
						id := fmt.Sprint(t.Name(), key)
						if abandoned {
							first := beginOf(id, scope, -1)
							_, err := s.BeginOperation(t.Context(), first)
							must(t, err)
							_, err = s.AbandonOperation(t.Context(), first.AttemptRef)
							must(t, err)
						}
						wantOneRun(t, s, id, scope)
					}
				})
			}
		}
	}
}

// wantOneRun begins an operation several times at once: one attempt begins, and the others are told.
func wantOneRun(t *testing.T, s *Store, id, scope string) {
	t.Helper()
	var all sync.WaitGroup
	var runs atomic.Int64
	for n := range 8 {
		all.Go(func() {
			reply, err := s.BeginOperation(t.Context(), beginOf(id, scope, n))
			switch {
			case err != nil:
				t.Errorf("%v; an outage: %v", err, store.Down(err))
			case reply.Outcome == store.Started:
				runs.Add(1)
			case reply.Outcome != store.Busy:
				t.Errorf("outcome %v", reply.Outcome)
			}
		})
	}
	all.Wait()
	if n := runs.Load(); n != 1 {
		t.Errorf("%d attempts have begun", n)
	}
}
