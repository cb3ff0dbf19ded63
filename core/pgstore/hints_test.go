package pgstore

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
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
	conn, err := s.db.Pool().Acquire(t.Context())
	must(t, err)
	defer conn.Release()
	tx, err := conn.Begin(t.Context())
	must(t, err)
	defer func() { _ = tx.Rollback(t.Context()) }()
	read := make([]int, times)
	for i := range read {
		read[i] = pagesRead(t, tx, s.db.Text(text), args...)
	}
	slices.Sort(read)
	return read
}

// pagesRead returns how many pages a statement reads.
func pagesRead(t *testing.T, tx pgx.Tx, text string, args ...any) int {
	t.Helper()
	var plan []byte
	must(t, tx.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+text, args...).Scan(&plan))
	var explained []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	must(t, json.Unmarshal(plan, &explained))
	return explained[0].Plan.Hit + explained[0].Plan.Read
}

// openOldTransaction begins a transaction with a snapshot, which the returned function ends.
func openOldTransaction(t *testing.T, s *Store) (end func()) {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), s.db.Pool().Config().ConnConfig)
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
	t.Parallel()
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
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text("SELECT id FROM lk.leases")).Scan(&key))
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text("SELECT id FROM lk.buckets")).Scan(&bucket))
	place := func(rows *rowPlaces, id [16]byte) pgtype.TID {
		at := rows.get(id)
		if !at.Valid {
			t.Error("the place is not known")
		}
		return at
	}
	none := pgtype.TID{}
	const few = 15
	for name, n := range map[string]int{
		"acquire":                 pages(t, s, acquireKnown, key, "id", "process", int64(1e6), 1, []byte(nil), int64(1), none),
		"release":                 pages(t, s, releaseOne, key, "id", int64(1), none),
		"the next step":           pages(t, s, "SELECT lk.step_lease_1('acquire', $1, 'process', 0, 'id', my_ttl => 1000000, my_weight => 1, my_room => 1)", key),
		"charge":                  pages(t, s, chargeNewest, bucket, int64(1000), int64(1000), int64(1e12), none),
		"the lock in its place":   pages(t, s, "SELECT "+newestOf("lk.leases", "$1", "$2"), key, place(&s.rows, key)),
		"the bucket in its place": pages(t, s, "SELECT "+newestOf("lk.buckets", "$1", "$2"), bucket, place(&s.buckets.rows, bucket)),
	} {
		if n > few {
			t.Errorf("%s reads %d pages, want at most %d", name, n, few)
		}
	}
	read := pagesOf(t, s, 100, "UPDATE lk.leases SET place = place + 1 WHERE id = $1 AND ctid = "+newestOf("lk.leases", "$1", "$2"), key, none)
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

// The newest version of a hot row is found in its place also where the table has room in front of
// older versions, which makes it the first one in the index.
func TestANewestVersionBeforeOlderOnes(t *testing.T) {
	t.Parallel()
	for range 5 {
		if newestBeforeOlder(t) {
			return
		}
	}
	t.Error("a search through the index never reads more than a few pages: the test shows nothing")
}

// newestBeforeOlder returns false if a search through the index finds the newest version at once: where
// the server puts it depends on what else it does.
func newestBeforeOlder(t *testing.T) (shown bool) {
	t.Helper()
	dsn := migrated(t)
	s, admin := openTestStore(t, dsn), connect(t, dsn)
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
		_, err := admin.Exec(t.Context(), s.db.Text(text), args...)
		must(t, err)
	}
	cycle("other")
	run(`INSERT INTO lk.leases SELECT (jsonb_populate_record(l, jsonb_build_object('id', gen_random_uuid()))).*
		FROM lk.leases l, generate_series(1, 3000)`)
	cycle("hot")
	var key [16]byte
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text("SELECT id FROM lk.lease_keys WHERE key = $1"), []byte("hot")).Scan(&key))
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
	earlier := s.rows.get(key)
	cycle("hot") // as another process would
	const few = 20
	step := "SELECT lk.step_lease_1('acquire', $1, 'process', 0, 'id', my_ttl => 1000000, my_weight => 1, my_room => 1, my_at => $2)"
	if n := pages(t, s, "SELECT "+newestOf("lk.leases", "$1", "$2"), key, s.rows.get(key)); n > 5 {
		t.Errorf("its place: %d pages are read, want at most 5", n)
	}
	for name, n := range map[string]int{
		"an earlier place":       pages(t, s, "SELECT "+newestOf("lk.leases", "$1", "$2"), key, earlier),
		"a step, its place":      pages(t, s, step, key, s.rows.get(key)),
		"a step, an earlier one": pages(t, s, step, key, earlier),
	} {
		if n > few {
			t.Errorf("%s: %d pages are read, want at most %d", name, n, few)
		}
	}
	n := pages(t, s, "SELECT "+newestOf("lk.leases", "$1", "$2"), key, pgtype.TID{})
	t.Logf("a search through the index reads %d pages", n)
	end()
	cycle("hot")
	return n > few
}

// A place past the end of the table, or one that another row has now, is of no use, and does no harm.
func TestAPlaceOfNoUse(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	locker, err := lock.New(s, "jobs")
	must(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	limiter, err := tokenbucket.New(s, "api", tokenbucket.PerSecond(1))
	must(t, err)
	t.Cleanup(func() { _ = limiter.Close() })
	id := func(name, key string) [16]byte { return s.leaseKey(name, key) }
	for _, key := range []string{"other", "hot"} {
		lease, err := locker.Lock(t.Context(), key)
		must(t, err)
		must(t, lease.Unlock(t.Context()))
	}
	other := s.rows.get(id("jobs", "other"))
	for _, at := range []pgtype.TID{other, {BlockNumber: 1 << 20, OffsetNumber: 1, Valid: true}} {
		for _, busy := range []bool{false, true} { // plain statements, and steps
			for range 2 {
				s.rows.set(id("jobs", "hot"), at)
				s.busy.set(id("jobs", "hot"), busy)
				lease, err := locker.Lock(t.Context(), "hot")
				must(t, err)
				s.rows.set(id("jobs", "hot"), at)
				s.busy.set(id("jobs", "hot"), busy)
				must(t, lease.Unlock(t.Context()))
			}
		}
	}
	var rows int
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text("SELECT count(*) FROM lk.leases")).Scan(&rows))
	if rows != 2 {
		t.Errorf("%d rows of leases, want 2", rows)
	}

	_, err = limiter.Allow(t.Context(), "hot")
	must(t, err)
	var bucket [16]byte
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text("SELECT id FROM lk.buckets")).Scan(&bucket))
	s.buckets.rows.set(bucket, pgtype.TID{BlockNumber: 1 << 20, OffsetNumber: 1, Valid: true})
	var debt *int64
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text(chargeNewest), bucket, int64(time.Second), int64(1), int64(1e18), s.buckets.rows.get(bucket)).Scan(&debt, nil))
	if debt == nil {
		t.Error("a charge with a place past the end does not find the row")
	}
}

// Statistics of an empty queue do not let a step pass the places that have left.
func TestAQueueBesideAnOldTransaction(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	end := openOldTransaction(t, s)
	defer end()
	key := [16]byte{1}
	step := func(kind, id string) string {
		return "PERFORM lk.step_lease_1('" + kind + "', '01000000-0000-0000-0000-000000000000', 'process', 0, (" + id + ")::text, my_ttl => 1000000, " +
			"my_weight => 1, my_room => 1, my_queue => true, my_span => 1000000000, my_name => CASE '" + kind + "' WHEN 'acquire' THEN ''::bytea END); COMMIT; "
	}
	const holder = "5000"
	admin := connect(t, s.db.Pool().Config().ConnString())
	run := func(text string) {
		t.Helper()
		_, err := admin.Exec(t.Context(), s.db.Text(text), pgx.QueryExecModeSimpleProtocol)
		must(t, err)
	}
	run("DO $$ BEGIN " + step("acquire", "0") + "FOR i IN 1.." + holder + " LOOP " + step("acquire", "i") + step("release", "i - 1") + "END LOOP; END $$")
	run("VACUUM ANALYZE lk.lease_places") // nobody waits
	run("DO $$ BEGIN " + step("acquire", "'waits'") + "END $$")
	const few = 25
	for name, text := range map[string]string{
		"a repeated acquire": "SELECT lk.step_lease_1('acquire', $1, 'process', 0, 'waits', my_ttl => 1000000, my_weight => 1, my_room => 1, my_queue => true)",
		"a withdrawal":       "SELECT lk.step_lease_1('release', $1, 'process', 0, 'waits')",
		"a hand-over":        "SELECT lk.step_lease_1('release', $1, 'process', 0, '" + holder + "')",
	} {
		if n := pages(t, s, text, key); n > few {
			t.Errorf("%s reads %d pages, want at most %d", name, n, few)
		}
	}
	if n := pages(t, s, "SELECT FROM lk.lease_places WHERE lease >= $1", [16]byte{}); n <= few {
		t.Errorf("the queue has %d pages: too few to show anything", n)
	}
}

// A sequential scan is off, and costs so much for the planner where there is nothing else that the
// server would compile the statement, which takes longer than the store waits.
func TestStatementsAreNotCompiled(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	for _, text := range append([]string{"SELECT version FROM lk.schema_version"}, sweeps...) {
		conn, err := s.db.Pool().Acquire(t.Context())
		must(t, err)
		var plan string
		err = conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, FORMAT JSON) "+s.db.Text(text)).Scan(&plan)
		conn.Release()
		must(t, err)
		if strings.Contains(plan, `"JIT"`) {
			t.Errorf("%s: %s", text, plan)
		}
	}
}
