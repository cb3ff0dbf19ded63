package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// hourly is a charge of n tokens of 100, one of which comes back in an hour.
func hourly(bucket string, n int64) store.Charge {
	return store.Charge{Bucket: bucket, Cost: time.Duration(n) * time.Hour, Capacity: 100 * time.Hour, Interval: time.Hour}
}

func request(key string, charges ...store.Charge) store.TokenRequest {
	return store.TokenRequest{Limiter: "l", Key: key, Charges: charges}
}

func query[T any](t testing.TB, s *Store, sql string, args ...any) (value T) {
	t.Helper()
	if err := s.db.Pool().QueryRow(t.Context(), sql, args...).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}

func change(t testing.TB, s *Store, sql string, args ...any) {
	t.Helper()
	if _, err := s.db.Pool().Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// waitsForALock reports whether anything in the database of a store waits for a lock.
func waitsForALock(t testing.TB, s *Store) bool {
	t.Helper()
	return query[bool](t, s, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())")
}

// lockBucket returns a transaction that has locked the bucket of a key.
func lockBucket(t testing.TB, s *Store, key string) pgx.Tx {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), s.db.Pool().Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), "SET idle_in_transaction_session_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tag, err := tx.Exec(t.Context(), "SELECT FROM lk.buckets WHERE id = $1 FOR UPDATE", s.digest("bucket", "l", key, ""))
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}
	return tx
}

// All kinds of calls about the same buckets, in all orders, never wait for each other in a circle,
// and charge no bucket beyond its capacity.
func TestBucketsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	one, other := openTestStore(t, dsn, WithoutDenialCache()), openTestStore(t, dsn, WithoutDenialCache())
	var charged [6]atomic.Int64 // tokens of each key
	var wg sync.WaitGroup
	for i := range 16 {
		s := one
		if i%2 == 1 {
			s = other
		}
		random := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for range 60 {
				some := random.Perm(len(charged))[:1+random.IntN(4)]
				all := make([]store.TokenRequest, len(some))
				n := random.Int64N(3)
				for k, key := range some {
					all[k] = request(fmt.Sprint(key), hourly("", n))
				}
				var err error
				switch random.IntN(8) {
				case 0:
					err = s.ResetTokens(t.Context(), request("reset", hourly(fmt.Sprint(n), 1), hourly("", 1), hourly("b", 1)))
				case 1:
					err = s.HoldTokens(t.Context(), request("reset", hourly("b", 1), hourly("", 1)), time.Microsecond)
				case 2:
					_, err = s.TakeTokens(t.Context(), request("reset", hourly("", 1), hourly("b", 1), hourly(fmt.Sprint(n), 1)), all...)
					if err == nil {
						continue // the keys are charged, too: but how often is known of the others only
					}
				case 3:
					s.sweepOnce(t.Context())
				default:
					var reply store.TakeReply
					if reply, err = s.TakeTokens(t.Context(), all[0], all[1:]...); reply.Allowed {
						for _, key := range some {
							charged[key].Add(n)
						}
					}
				}
				if err != nil {
					t.Errorf("%v", err)
				}
			}
		})
	}
	wg.Wait()
	for key := range charged {
		reply, err := one.TakeTokens(t.Context(), request(fmt.Sprint(key), hourly("", 0)))
		if used := reply.Debts.At(0); err != nil || used > 100*time.Hour || used < time.Duration(charged[key].Load())*time.Hour-time.Hour/10 {
			t.Errorf("key %d: %v are used, of which %d tokens are known; %v", key, used, charged[key].Load(), err)
		}
	}
	change(t, one, "SELECT pg_stat_force_next_flush()")
	if n := query[int](t, one, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// A charge whose caller has left may still be made, once. One that the server has ended was not.
func TestChargesOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	for name, charges := range map[string][]store.Charge{
		"one bucket": {hourly("", 1)}, "two buckets": {hourly("", 1), hourly("b", 1)}, "a look first": {hourly("", 1), hourly("b", 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newTestStore(t)
			quick := openTestStore(t, s.db.Pool().Config().ConnString(), WithTimeout(300*time.Millisecond))
			if _, err := s.TakeTokens(t.Context(), request("k", charges...)); err != nil {
				t.Fatal(err)
			}
			tx := lockBucket(t, s, "k")
			_, err := quick.TakeTokens(t.Context(), request("k", charges...))
			if !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("the server has ended it: %v", err)
			}
			waiting := func() bool { return waitsForALock(t, s) }
			eventually(t, "the server has ended it", func() bool { return !waiting() })
			ctx, cancel := context.WithCancel(t.Context())
			left := make(chan error)
			go func() {
				_, err := s.TakeTokens(ctx, request("k", charges...))
				left <- err
			}()
			eventually(t, "the next one waits", waiting)
			cancel()
			if err := <-left; !errors.Is(err, store.ErrUnconfirmed) || !errors.Is(err, context.Canceled) {
				t.Errorf("the caller has left: %v", err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := 2 * time.Hour
			var used time.Duration
			eventually(t, "the charge is made", func() bool {
				reply, err := s.TakeTokens(t.Context(), request("k", hourly("", 0)))
				must(t, err)
				used = reply.Debts.At(0)
				return used > want-time.Minute
			})
			if used > want {
				t.Errorf("%v are used", used)
			}
		})
	}
}

// A denial of a key that was denied lately, and a look, neither lock nor write a row.
func TestDenialsWriteNothing(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	if _, err := s.TakeTokens(t.Context(), request("k", hourly("", 100))); err != nil {
		t.Fatal(err)
	}
	version := func() string {
		return query[string](t, s, "SELECT string_agg(format('%s %s %s', ctid, xmin, xmax), ',') FROM lk.buckets")
	}
	before := version()
	for name, r := range map[string]store.TokenRequest{
		"denied": request("k", hourly("", 1)), "a look": request("k", hourly("", 0)), "a look at a full one": request("new", hourly("", 0)),
		"one of two": request("k", hourly("", 1), hourly("b", 1)), "more than all": request("new", hourly("", 101)),
	} {
		reply, err := looking{s}.TakeTokens(t.Context(), r)
		if allowed := r.Charges[0].Cost == 0; err != nil || reply.Allowed != allowed {
			t.Errorf("%s: %+v, %v", name, reply, err)
		}
		if after := version(); after != before {
			t.Errorf("%s: %s became %s", name, before, after)
		}
	}
}

func TestDenialsAreCached(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	r := request("k", hourly("", 60))
	if reply, err := s.TakeTokens(t.Context(), r); err != nil || !reply.Allowed {
		t.Errorf("the first call: %+v, %v", reply, err)
	}
	attempts := 0
	eventually(t, "two calls within the second that a denial is kept", func() bool {
		attempts++
		began := time.Now()
		first, err := s.TakeTokens(t.Context(), r)
		must(t, err)
		again, err := s.TakeTokens(t.Context(), r)
		must(t, err)
		if first.Allowed || again.Allowed {
			t.Fatalf("a call without room: %+v, and again: %+v", first, again)
		}
		if time.Since(began) >= time.Second {
			return false
		}
		if first.Cached && attempts == 1 || !again.Cached {
			t.Errorf("a call without room: %+v, and again: %+v", first, again)
		}
		return true
	})
	if reply, err := s.TakeTokens(t.Context(), request("k", hourly("", 40))); err != nil || !reply.Allowed {
		t.Errorf("what has room: %+v, %v", reply, err)
	}
	if err := s.ResetTokens(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if reply, err := s.TakeTokens(t.Context(), r); err != nil || !reply.Allowed {
		t.Errorf("after the reset: %+v, %v", reply, err)
	}
}

// After the clock stepped back a denial says when the key can be charged again.
func TestABucketAfterTheClockSteppedBack(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	clock := newTestClock(t, s)
	used := hourly("", 30)
	if reply, err := s.TakeTokens(t.Context(), request("k", used)); err != nil || !reply.Allowed {
		t.Fatalf("%+v, %v", reply, err)
	}
	clock.pass(t, -1000*time.Hour)
	for range 3 {
		reply, err := s.TakeTokens(t.Context(), request("k", hourly("", 1)))
		if err != nil || reply.Allowed || reply.Debts.At(0).Round(time.Hour) != used.Cost+1000*time.Hour {
			t.Errorf("%+v, %v", reply, err)
		}
	}
}

func TestFullBucketsAreSwept(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	clock := newTestClock(t, s)
	take := func(r store.TokenRequest) {
		t.Helper()
		if reply, err := s.TakeTokens(t.Context(), r); err != nil || !reply.Allowed {
			t.Fatalf("%+v, %v", reply, err)
		}
	}
	for i := range 2500 {
		take(request(fmt.Sprint(i), hourly("", 1)))
	}
	day := hourly("day", 1)
	bound := func(d time.Duration) time.Time { return clock.now.Add(d) }
	day.Interval, day.Period = 1, &store.Period{Begin: bound(-time.Hour), End: bound(23 * time.Hour), Next: bound(47 * time.Hour)}
	take(request("k", hourly("", 30), day))
	if err := s.HoldTokens(t.Context(), request("held", hourly("", 1)), 12*time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, after := range []struct {
		time.Duration
		left int
	}{{time.Hour, 2503}, {time.Hour + time.Minute + time.Microsecond, 3}, {13 * time.Hour, 2}, {24 * time.Hour, 1}, {32 * time.Hour, 0}} {
		clock.pass(t, after.Duration-clock.now.Sub(day.Period.Begin.Add(time.Hour)))
		for s.sweepOnce(t.Context()) {
		}
		if left := query[int](t, s, "SELECT count(*) FROM lk.buckets"); left != after.left {
			t.Errorf("%d buckets are left after %v, want %d", left, after.Duration, after.left)
		}
	}
}

// After a crash of the server unlogged buckets are full, and logged ones as they were.
func TestLoggedBuckets(t *testing.T) {
	t.Parallel()
	if _, err := New("postgres://localhost/none", LoggedBuckets()); err == nil {
		t.Error("New takes an option that does nothing there")
	}
	server := postgrestest.Start(t)
	conn, err := pgx.Connect(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	for _, opts := range [][]Option{
		{WithSchema("unlogged")}, {WithSchema("logged"), LoggedBuckets()}, {WithSchema("later")}, {WithSchema("later"), LoggedBuckets()},
	} {
		if err := Migrate(t.Context(), conn, opts...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Exec(t.Context(), Schema(WithSchema("text"), LoggedBuckets()), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context())
	charge := func(schema string, n int64) time.Duration {
		t.Helper()
		s := openTestStore(t, server.DSN(), WithSchema(schema))
		reply, err := s.TakeTokens(t.Context(), request("k", hourly("", n)))
		if err != nil || !reply.Allowed {
			t.Fatalf("%s: %+v, %v", schema, reply, err)
		}
		return reply.Debts.At(0)
	}
	schemas := []string{"unlogged", "logged", "later", "text"}
	for _, schema := range schemas {
		charge(schema, 7)
	}
	server.Kill()
	server.Restart()
	for _, schema := range schemas {
		if used := charge(schema, 0); (used > 0) != (schema != "unlogged") {
			t.Errorf("%s: %v are used", schema, used)
		}
	}
}

// Charges that wait for the same bucket are made together, by few writes of its row.
func TestAHotBucketIsWrittenSeldom(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	r := request("k", hourly("", 1))
	if _, err := s.TakeTokens(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	tx := lockBucket(t, s, "k")
	const charges = 99
	var wg sync.WaitGroup
	var begun atomic.Int64
	for range charges {
		wg.Go(func() {
			begun.Add(1)
			if reply, err := s.TakeTokens(t.Context(), r); err != nil || !reply.Allowed {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
	inFlight := func() int {
		return query[int](t, s, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
	}
	eventually(t, "all wait", func() bool { return begun.Load() == charges && inFlight() > statements }) // one more has those that had to wait
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	reply, err := s.TakeTokens(t.Context(), request("k", hourly("", 0)))
	if used := reply.Debts.At(0); err != nil || used <= 99*time.Hour || used > 100*time.Hour {
		t.Errorf("%v are used, %v", used, err)
	}
	change(t, s, "SELECT pg_stat_force_next_flush()")
	if n := query[int](t, s, "SELECT pg_stat_get_tuples_updated('lk.buckets'::regclass)"); n == 0 || n > charges/4 {
		t.Errorf("the row was written %d times", n)
	}
}
