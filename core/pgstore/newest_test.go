package pgstore

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// pages returns how many pages of tables and indexes a statement reads: the median of several times,
// since a version that begins a new page is added to the index, and a unique one compares it with all
// others. It undoes what the statement does.
func pages(t *testing.T, s *Store, text string, args ...any) int {
	t.Helper()
	read := pagesOf(t, s, 15, text, args...)
	return read[len(read)/2]
}

// pagesOf returns how many pages a statement reads, for so many times, from the least to the most.
func pagesOf(t *testing.T, s *Store, times int, text string, args ...any) []int {
	t.Helper()
	conn, err := s.pool.Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	read := make([]int, times)
	for i := range read {
		var plan []byte
		must(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+s.sql(text), args...).Scan(&plan))
		var explained []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		must(t, json.Unmarshal(plan, &explained))
		read[i] = explained[0].Plan.Hit + explained[0].Plan.Read
	}
	slices.Sort(read)
	return read
}

// openOldTransaction begins a transaction with a snapshot, which the returned function ends.
func openOldTransaction(t *testing.T, s *Store) (end func()) {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), s.pool.Config().ConnConfig)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	old, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must(t, err)
	_, err = old.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0")
	must(t, err)
	_, err = old.Exec(t.Context(), "SELECT 1") // it has its snapshot
	must(t, err)
	return func() { must(t, old.Rollback(t.Context())) }
}

// While an old transaction keeps the server from removing the versions of a hot row, its steps find
// the newest one without a look at the others.
func TestAnOldTransactionBesideAHotRow(t *testing.T) {
	s := newTestStore(t)
	locker, err := lock.New(s, "jobs")
	must(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	limiter, err := tokenbucket.New(s, "api", tokenbucket.PerSecond(1_000_000))
	must(t, err)
	t.Cleanup(func() { _ = limiter.Close() })

	end := openOldTransaction(t, s)
	for range 1500 {
		lease, err := locker.Lock(t.Context(), "hot")
		must(t, err)
		must(t, lease.Unlock(t.Context()))
		_, err = limiter.Allow(t.Context(), "hot")
		must(t, err)
	}

	var key, bucket [16]byte
	must(t, s.pool.QueryRow(t.Context(), s.sql("SELECT id FROM lk.leases")).Scan(&key))
	must(t, s.pool.QueryRow(t.Context(), s.sql("SELECT id FROM lk.buckets")).Scan(&bucket))
	place := func(rows *rowPlaces, id [16]byte) pgtype.TID {
		at, known := rows.get(id)
		if !known || !at.Valid {
			t.Errorf("the place is %v, known: %v", at, known)
		}
		return at
	}
	none := pgtype.TID{}
	const few = 15
	for name, n := range map[string]int{
		"acquire":                 pages(t, s, acquireKnown, key, "id", "process", int64(1e6), 1, []byte(nil), int64(1), none),
		"release":                 pages(t, s, releaseOnly, key, "id", int64(1), none),
		"the next step":           pages(t, s, "SELECT lk.step_lease_1('acquire', $1, 'process', 0, 'id', my_ttl => 1000000, my_weight => 1, my_room => 1)", key),
		"charge":                  pages(t, s, chargeKnown, bucket, int64(1000), int64(1000), int64(1e12), none),
		"charge, and wait":        pages(t, s, chargeNewest, bucket, int64(1000), int64(1000), int64(1e12)),
		"the lock in its place":   pages(t, s, "SELECT "+newestOf("lk.leases", "$2"), key, place(&s.rows, key)),
		"the bucket in its place": pages(t, s, "SELECT "+newestOf("lk.buckets", "$2"), bucket, place(&s.buckets.rows, bucket)),
	} {
		if n > few {
			t.Errorf("%s reads %d pages, want at most %d", name, n, few)
		}
	}
	read := pagesOf(t, s, 100, "UPDATE lk.leases SET place = place + 1 WHERE id = $1 AND ctid = "+newestOf("lk.leases", "$2"), key, none)
	if n := read[len(read)-1]; n > 2*few {
		t.Errorf("a version of the lock that begins a new page reads %d pages, want at most %d", n, 2*few)
	}
	for _, table := range []string{"lk.leases", "lk.buckets"} { // a search by the key does not
		if n := pages(t, s, "SELECT FROM "+table+" WHERE id >= $1", [16]byte{}); n <= few {
			t.Errorf("%s has %d pages: too few to show anything", table, n)
		}
	}
	end()
}

// A call that hangs keeps others of its key from taking turns for a moment only, and a process that
// writes the row as well until it has ended.
func TestCallsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rows rowPlaces
		key := [16]byte{1}
		end, ok := rows.turn(key)
		if !ok {
			t.Fatal("the first call has no turn")
		}
		began := time.Now()
		if _, ok := rows.turn(key); ok || time.Since(began) != maxTurn {
			t.Errorf("a second turn: %v, after %v", ok, time.Since(began))
		}
		time.AfterFunc(maxTurn/2, end)
		next, ok := rows.turn(key)
		if !ok {
			t.Fatal("no turn after the end of the first")
		}
		next()

		rows.set(key, pgtype.TID{Valid: true})
		for miss := range maxMisses {
			if end, ok = rows.turn(key); !ok {
				t.Fatalf("no turn after %d misses", miss)
			}
			rows.move(key, pgtype.TID{Valid: true}, true)
			end()
		}
		if _, ok := rows.turn(key); ok {
			t.Error("calls take turns although another process writes the row as well")
		}
		for range 1000 {
			rows.move(key, pgtype.TID{Valid: true}, false)
		}
		if _, ok := rows.turn(key); !ok {
			t.Error("calls never take turns again")
		}
	})
}

// The newest version of a hot row is found in its place also where the table has room in front of
// older versions, which makes it the first one in the index.
func TestANewestVersionBeforeOlderOnes(t *testing.T) {
	s := newTestStore(t)
	locker, err := lock.New(s, "jobs")
	must(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	cycle := func(key string) {
		lease, err := locker.Lock(t.Context(), key)
		must(t, err)
		must(t, lease.Unlock(t.Context()))
	}
	run := func(text string, args ...any) {
		t.Helper()
		_, err := s.pool.Exec(t.Context(), s.sql(text), args...)
		must(t, err)
	}
	cycle("other")
	run(`INSERT INTO lk.leases SELECT (jsonb_populate_record(l, jsonb_build_object('id', gen_random_uuid()))).*
		FROM lk.leases l, generate_series(1, 3000)`)
	cycle("hot")
	var key [16]byte
	must(t, s.pool.QueryRow(t.Context(), s.sql("SELECT id FROM lk.lease_keys WHERE key = $1"), []byte("hot")).Scan(&key))
	run("DELETE FROM lk.leases WHERE id <> $1", key)
	end := openOldTransaction(t, s)
	for range 2 {
		for range 700 {
			cycle("hot")
		}
		run("VACUUM lk.leases") // makes room for what follows, in front
	}
	for range 50 {
		cycle("hot")
	}
	at, _ := s.rows.get(key)
	const few = 5
	if n := pages(t, s, "SELECT "+newestOf("lk.leases", "$2"), key, at); n > few {
		t.Errorf("%d pages are read, want at most %d", n, few)
	}
	if n := pages(t, s, "SELECT "+newestOf("lk.leases", "$2"), key, pgtype.TID{}); n <= few {
		t.Errorf("a search through the index reads %d pages: too few to show anything", n)
	}
	end()
	cycle("hot")
}

// A sequential scan is off, and costs so much for the planner where there is nothing else that the
// server would compile the statement, which takes longer than the store waits.
func TestStatementsAreNotCompiled(t *testing.T) {
	s := newTestStore(t)
	for _, text := range append([]string{"SELECT version FROM lk.schema_version"}, sweeps...) {
		conn, err := s.pool.Acquire(t.Context())
		must(t, err)
		var plan string
		err = conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+s.sql(text)).Scan(&plan)
		conn.Release()
		must(t, err)
		if strings.Contains(plan, `"JIT"`) {
			t.Errorf("%s: %s", text, plan)
		}
	}
}
