package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
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

// A server with slow commits works. A duplicate that waits for such a commit is in flight. If that
// counted as an outage, the duplicate would run unprotected, beside the first one.
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

// wantOneRun begins an operation several times at once: one attempt begins, and the others are
// refused as in flight.
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

// A bound that ends a call while the server replies is no outage, neither the wait for a row nor
// the wait for a connection.
func TestBoundsAreNoOutage(t *testing.T) {
	t.Parallel()
	for name, blocked := range map[string]int{"a lone caller": 1, "a full pool": 24} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn, log := prepared(t), new(logbook)
			s := openTestStore(t, dsn, WithTimeout(brisk), WithConnections(4), log.option())
			eventually(t, "it works", func() bool { return count(t.Context(), s, 1) == nil })
			tx, err := connect(t, dsn).Begin(t.Context())
			must(t, err)
			_, err = tx.Exec(t.Context(), "UPDATE lk.counts SET n = 0 WHERE id = 1")
			must(t, err)
			var all sync.WaitGroup
			for range blocked {
				all.Go(func() {
					if err := count(t.Context(), s, 1); !errors.Is(err, store.ErrOverloaded) || store.Down(err) || store.CauseOf(err) != store.Overloaded {
						t.Errorf("got %v, an outage: %v", err, store.Down(err))
					}
				})
			}
			all.Wait()
			must(t, tx.Rollback(t.Context()))
			must(t, count(t.Context(), s, 1))
			if log.has(tripped) {
				t.Error("the breaker opened")
			}
		})
	}
}

// While others fill the server, the store works with the connections that it has.
func TestAServerWithoutRoomForConnections(t *testing.T) {
	t.Parallel()
	dsn, log := prepared(t), new(logbook)
	role := "few_" + databaseOf(t, dsn)
	administer(t, dsn, "CREATE ROLE "+role+" LOGIN CONNECTION LIMIT 3", Grants(role), "GRANT ALL ON lk.counts TO "+role)
	s := openTestStore(t, strings.Replace(dsn, "postgres@", role+"@", 1), log.option())
	must(t, count(t.Context(), s, 1))
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			for range 20 {
				if err := countOnce(t.Context(), s, 1+i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	must(t, s.db.Probe())
}

// Connections that died without a reset cost one call, however many there are: a new one works.
func TestConnectionsThatDied(t *testing.T) {
	t.Parallel()
	dsn, log := prepared(t), new(logbook)
	settings, err := pgxpool.ParseConfig(dsn)
	must(t, err)
	proxy := postgrestest.NewProxy(t, statement.AddressOf(settings.ConnConfig))
	_, port, err := net.SplitHostPort(proxy.Addr())
	must(t, err)
	var forgotten atomic.Bool
	settings.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if !forgotten.Load() {
			through, err := strconv.ParseUint(port, 10, 16)
			c.Port = uint16(through)
			return err
		}
		return nil
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), settings)
	must(t, err)
	defer pool.Close()
	s, err := NewFromPool(pool, WithTimeout(3*brisk), log.option())
	must(t, err)
	defer func() { _ = s.Close() }()
	occupy(t, s, s.config.connections)
	proxy.BlackHole()
	forgotten.Store(true)
	failed := 0
	eventually(t, "calls succeed", func() bool {
		err := count(t.Context(), s, 1)
		if err != nil && (!errors.Is(err, store.ErrOverloaded) || store.Down(err)) {
			t.Errorf("got %v, an outage: %v", err, store.Down(err))
		}
		if err != nil {
			failed++
		}
		return err == nil
	})
	for range 20 {
		must(t, count(t.Context(), s, 1))
	}
	if failed > 2 || log.has(tripped) {
		t.Errorf("%d calls failed; the breaker opened: %v", failed, log.has(tripped))
	}
	proxy.Mend()
}

// A probe whose own connection becomes silent, as those of the pool do, asks by another one, and the
// breaker stays closed.
func TestAProbeThatBecomesSilent(t *testing.T) {
	t.Parallel()
	dsn := prepared(t)
	address, err := pgx.ParseConfig(dsn)
	must(t, err)
	proxy := postgrestest.NewProxy(t, statement.AddressOf(address))
	settings, err := pgxpool.ParseConfig(postgrestest.Through(dsn, proxy.Addr()))
	must(t, err)
	var strands atomic.Int64 // how many of the next connections become silent
	settings.AfterConnect = func(context.Context, *pgx.Conn) error {
		if strands.Add(-1) >= 0 {
			proxy.Strand()
		}
		return nil
	}
	log := new(logbook)
	pool, err := pgxpool.NewWithConfig(t.Context(), settings)
	must(t, err)
	t.Cleanup(pool.Close)
	s, err := NewFromPool(pool, WithTimeout(2*time.Second), log.option())
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	must(t, count(t.Context(), s, 1))
	for range 3 {
		strands.Store(1)
		if err := s.db.Probe(); err != nil {
			t.Errorf("the probe: %v", err)
		}
		must(t, count(t.Context(), s, 1))
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	strands.Store(1 << 30) // and it fails if no connection replies
	if err := s.db.Probe(); store.CauseOf(err) != store.Timeout {
		t.Errorf("no connection replies: %v", err)
	}
	strands.Store(0)
	proxy.Mend()
}

// Connections that died in use, however often that happens, leave the pool to new ones. The client
// waits for 15 s for the server to end them.
func TestConnectionsThatDieInUse(t *testing.T) {
	t.Parallel()
	_, proxy, s := behindProxy(t, WithTimeout(hasty), WithConnections(4))
	var row atomic.Int64
	end := keepCalling(t, 8, func() error { return ignoreOutage(count(t.Context(), s, int(row.Add(1)%8)+1)) })
	defer end()
	var took []time.Duration
	for range 4 {
		eventually(t, "all connections are in use", func() bool { return s.db.Pool().Stat().AcquiredConns() >= 3 })
		proxy.Strand()
		began := time.Now()
		eventually(t, "calls succeed", func() bool { return count(t.Context(), s, 9) == nil })
		took = append(took, time.Since(began))
	}
	if slowest := slices.Max(took); slowest > 10*time.Second {
		t.Errorf("calls succeeded after %v", took)
	}
	proxy.Mend()
}
