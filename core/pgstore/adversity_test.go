package pgstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// A forgotten transaction holds a row: calls for it end in time and change nothing, and
// calls for other rows are not affected.
func TestAnIdleTransactionHoldsARow(t *testing.T) {
	t.Parallel()
	log := new(logbook)
	dsn := prepared(t)
	s := openTestStore(t, dsn, WithTimeout(brisk), log.option())
	other, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer func() { _ = other.Close(t.Context()) }()
	for _, sql := range []string{"BEGIN", "UPDATE lk.counts SET n = 100 WHERE id = 1"} {
		_, err := other.Exec(t.Context(), sql)
		must(t, err)
	}
	var took []time.Duration
	var mu sync.Mutex
	var all sync.WaitGroup
	for range 4 { // fewer than the pool has connections
		all.Go(func() {
			for range 5 {
				began := time.Now()
				if err := count(t.Context(), s, 1); !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("a call for the row: %v", err)
				}
				mu.Lock()
				took = append(took, time.Since(began))
				mu.Unlock()
			}
		})
	}
	over := make(chan struct{})
	go func() { all.Wait(); close(over) }()
	for others := 0; ; others++ {
		must(t, count(t.Context(), s, 2))
		select {
		case <-time.After(brisk / 20):
			continue
		case <-over:
		}
		if others < 20 {
			t.Errorf("%d calls for another row have succeeded beside them", others)
		}
		break
	}
	punctual(t, "calls for the row", 2*brisk+50*time.Millisecond, took)
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	look, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer func() { _ = look.Close(t.Context()) }()
	eventually(t, "the server ends the statements of the callers that have left", func() bool {
		var n int
		must(t, look.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n))
		return n == 0
	})
	_, err = other.Exec(t.Context(), "ROLLBACK")
	must(t, err)
	unconfirmed := 0 // on a slow machine
	eventually(t, "the row is free", func() bool {
		err := count(t.Context(), s, 1)
		if errors.Is(err, store.ErrUnconfirmed) {
			unconfirmed++
		}
		return err == nil
	})
	if n := counted(t, dsn, 1); n < 1 || n > 1+unconfirmed {
		t.Errorf("counted %d: a call that failed has run later", n)
	}
}

// The store's transactions are READ COMMITTED, whatever the server, the database, the role or the DSN
// says; serializable ones would fail on a contended row.
func TestDefaultIsolation(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "default_transaction_isolation=serializable")
	install(t, server.DSN())
	administer(t, server.DSN(), "CREATE ROLE strict LOGIN SUPERUSER", "ALTER ROLE strict SET default_transaction_isolation = 'repeatable read'")
	for name, dsn := range map[string]string{
		"of the server": server.DSN(),
		"of the role":   "postgres://strict@" + server.Addr() + "/postgres?sslmode=disable",
		"of the DSN":    server.DSN() + "&default_transaction_isolation=serializable",
	} {
		t.Run(name, func(t *testing.T) {
			s := openTestStore(t, dsn)
			administer(t, server.DSN(), "UPDATE lk.counts SET n = 0")
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 20 {
						if err := countOnce(t.Context(), s, 1); err != nil {
							t.Error(err)
						}
					}
				})
			}
			all.Wait()
			if n := counted(t, server.DSN(), 1); n != 160 {
				t.Errorf("counted %d", n)
			}
		})
	}
}

// What the server rolls back for the sake of another transaction is repeated.
func TestDeadlocksAreResolved(t *testing.T) {
	t.Parallel()
	dsn := prepared(t)
	administer(t, dsn, "ALTER DATABASE "+databaseOf(t, dsn)+" SET deadlock_timeout = '20ms'")
	s := openTestStore(t, dsn)
	// In the first transactions each has changed a row before it changes the other one's.
	var between sync.WaitGroup
	between.Add(2)
	both := func(first, second int, meet *sync.Once) error {
		_, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opRenewLeases, Writes: true}, func(ctx context.Context, c *pgx.Conn) (struct{}, error) {
			return struct{}{}, pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
				for _, id := range []int{first, second} {
					if _, err := tx.Exec(ctx, "UPDATE lk.counts SET n = n + 1 WHERE id = $1", id); err != nil {
						return err
					}
					meet.Do(func() {
						between.Done()
						between.Wait()
					})
				}
				return nil
			})
		})
		return err
	}
	var all sync.WaitGroup
	for i := range 2 {
		all.Go(func() {
			var meet sync.Once
			for range 50 {
				if err := both(1+i, 2-i, &meet); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	must(t, s.Close()) // or the statistics would come later
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	var deadlocks int
	eventually(t, "a deadlock is in the statistics", func() bool {
		must(t, conn.QueryRow(t.Context(), "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&deadlocks))
		return deadlocks > 0
	})
	if n := counted(t, dsn, 1); n != 100 {
		t.Errorf("counted %d, with %d deadlocks", n, deadlocks)
	}
}

func TestAPoolOfOne(t *testing.T) {
	t.Parallel()
	log := new(logbook)
	dsn := prepared(t)
	s := openTestStore(t, dsn, WithConnections(1), log.option())
	s.db.Listen()
	exercise(t, s)
	eventually(t, "it listens", s.db.Listens)
	if n := backends(t, dsn); n != 2 {
		t.Errorf("%d connections; want one, and that which listens", n)
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
}

// Callers beyond what the pool can do wait for their time, and are no evidence against the server.
func TestABurst(t *testing.T) {
	t.Parallel()
	log := new(logbook)
	s := openTestStore(t, prepared(t), WithConnections(1), WithTimeout(brisk), log.option())
	took := make([]time.Duration, 50)
	var all sync.WaitGroup
	for i := range took {
		all.Go(func() {
			began := time.Now()
			_, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opInspect}, statement.Execute("SELECT pg_sleep($1)", brisk.Seconds()/10))
			if err != nil {
				wantUnavailable(t, err, false)
			}
			took[i] = time.Since(began)
		})
	}
	all.Wait()
	punctual(t, "calls", 2*brisk+100*time.Millisecond, took)
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	must(t, count(t.Context(), s, 1))
}

// A caller that leaves costs the pool nothing: the connection is used again. Of those that wait for what
// should take no time, the first one costs a connection.
func TestCallersThatLeave(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		brief bool
		lost  int
	}{
		"a step":   {false, 0},
		"a lookup": {true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := prepared(t)
			log := new(logbook)
			s := openTestStore(t, dsn, WithConnections(2), log.option())
			occupy(t, s, 2)
			pids := func() (pids []int) {
				conn, err := pgx.Connect(t.Context(), dsn)
				must(t, err)
				defer func() { _ = conn.Close(t.Context()) }()
				must(t, conn.QueryRow(t.Context(), "SELECT array_agg(pid) FROM pg_stat_activity "+
					"WHERE datname = current_database() AND application_name = 'lockkeeper'").Scan(&pids))
				return pids
			}
			before := pids()
			took := make([]time.Duration, 20)
			for i := range took {
				ctx, leave := context.WithTimeout(t.Context(), 5*time.Millisecond)
				began := time.Now()
				_, err := statement.Run(ctx, s.db, statement.Call{Operation: opInspect, Writes: true, Brief: test.brief}, statement.Execute("SELECT pg_sleep(0.05)"))
				took[i] = time.Since(began)
				leave()
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("call %d: %v", i, err)
				}
			}
			punctual(t, "calls", 150*time.Millisecond, took)
			must(t, count(t.Context(), s, 1))
			after := pids()
			left := slices.DeleteFunc(before, func(pid int) bool { return !slices.Contains(after, pid) })
			if lost := 2 - len(left); lost != test.lost {
				t.Errorf("%d connections were lost, want %d", lost, test.lost)
			}
			if log.has(tripped) {
				t.Error("the breaker opened")
			}
		})
	}
}

func TestTheListenerIsTerminated(t *testing.T) {
	t.Parallel()
	dsn := prepared(t)
	s := openTestStore(t, dsn)
	s.db.Listen()
	admin := connect(t, dsn)
	for before, times := 0, 0; ; times++ {
		var pid int
		eventually(t, "it listens, on a new connection", func() bool {
			must(t, admin.QueryRow(t.Context(), "SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE query = 'LISTEN "+s.db.Inbox()+"'").Scan(&pid))
			return pid != 0 && pid != before && s.db.Listens()
		})
		if times == 3 {
			return
		}
		before = pid
		_, err := admin.Exec(t.Context(), "SELECT pg_terminate_backend($1)", pid)
		must(t, err)
	}
}
