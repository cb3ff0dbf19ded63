package guides_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// state is a kind of state of the table in docs/deploying.md. make returns what makes one of them.
type state struct {
	row  string
	make func(st store.Store) (func(ctx context.Context, key string) error, error)
}

// long outlasts the test, so that nothing is renewed.
const long = 10 * time.Minute

var states = []state{
	{"token bucket in debt", func(st store.Store) (func(context.Context, string) error, error) {
		limiter, err := tokenbucket.New(st, "api", tokenbucket.PerHour(100))
		return func(ctx context.Context, key string) error {
			_, err := limiter.Allow(ctx, key)
			return err
		}, err
	}},
	{"lock, held", func(st store.Store) (func(context.Context, string) error, error) {
		locks, err := lock.New(st, "held", lock.WithTTL(long))
		return func(ctx context.Context, key string) error {
			_, err := locks.TryLock(ctx, key)
			return err
		}, err
	}},
	{"lock, within an hour of its release", func(st store.Store) (func(context.Context, string) error, error) {
		locks, err := lock.New(st, "released", lock.WithTTL(long))
		return func(ctx context.Context, key string) error {
			lease, err := locks.TryLock(ctx, key)
			if err != nil {
				return err
			}
			return lease.Unlock(ctx)
		}, err
	}},
	{"permit, held, of a key of its own", func(st store.Store) (func(context.Context, string) error, error) {
		places, err := semaphore.New(st, "places", 4, semaphore.WithTTL(long))
		return func(ctx context.Context, key string) error {
			_, err := places.TryAcquire(ctx, key)
			return err
		}, err
	}},
	{"operation, finished, with an answer of 200 bytes", func(st store.Store) (func(context.Context, string) error, error) {
		orders, err := guard.New(st, "orders")
		return func(ctx context.Context, key string) error {
			op := guard.Operation{Scope: "user-" + key[len(key)-2:], Key: key}
			_, _, err := guard.Do(ctx, orders, op, func(context.Context) (string, error) { return strings.Repeat(key, 10)[:198], nil })
			return err
		}, err
	}},
	{"delayed task, waiting, with a payload of 100 bytes", func(st store.Store) (func(context.Context, string) error, error) {
		queue, err := delay.New(st, "timers")
		return func(ctx context.Context, key string) error {
			_, err := queue.Put(ctx, key, []byte(strings.Repeat(key, 5)), time.Hour)
			return err
		}, err
	}},
}

// The table says what each kind of state takes on each store, within a third.
func TestWhatStateTakes(t *testing.T) {
	if testing.Short() {
		t.Skip("makes ten thousand of each")
	}
	page, err := os.ReadFile("../../docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	stores := []func(t *testing.T) (st store.Store, size func() float64){inMemory, onRedis, onPostgres}
	for column, open := range stores {
		st, size := open(t)
		for _, s := range states {
			row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(s.row) + ` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$`).FindSubmatch(page)
			if row == nil {
				t.Fatalf("the table has no row %q", s.row)
			}
			want, err := strconv.ParseFloat(strings.ReplaceAll(string(row[column+1]), ",", ""), 64)
			if err != nil {
				t.Fatal(err)
			}
			got := bytesEach(t, st, s, size)
			t.Logf("%s, column %d: %.0f bytes", s.row, column+1, got)
			if math.Abs(want-got) > max(got/3, 20) {
				t.Errorf("%s takes %.0f bytes in column %d, and the table says %.0f", s.row, got, column+1, want)
			}
		}
	}
}

// The second table is the first one times a number, in MB.
func TestSizesOfStates(t *testing.T) {
	page, err := os.ReadFile("../../docs/deploying.md")
	if err != nil {
		t.Fatal(err)
	}
	number := func(text []byte) float64 {
		t.Helper()
		n, err := strconv.ParseFloat(strings.ReplaceAll(string(text), ",", ""), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	kinds := map[string][2]float64{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| [\d,]+ \| ([\d,]+) \| ([\d,]+) \|$`).FindAllSubmatch(page, -1) {
		kinds[string(row[1])] = [2]float64{number(row[2]), number(row[3])}
	}
	rows := regexp.MustCompile(`(?m)^\| ([^|]+) \| ([\d,]+) \| ([^|]+) \| ([\d,]+) \| ([\d,]+) \|$`).FindAllSubmatch(page, -1)
	if len(rows) == 0 {
		t.Error("the page has no sizes")
	}
	for _, row := range rows {
		each, ok := kinds[string(row[3])]
		if !ok {
			t.Errorf("%s: the first table has no %q", row[1], row[3])
		}
		for i, each := range each {
			if got, want := number(row[4+i]), number(row[2])*each/1e6; got < 0.95*want || got > 1.05*want {
				t.Errorf("%s takes %.0f MB, and the table says %.0f", row[1], want, got)
			}
		}
	}
}

// bytesEach makes many of a kind, and returns what each of them takes.
func bytesEach(t *testing.T, st store.Store, s state, size func() float64) float64 {
	t.Helper()
	const many = 10_000
	begin, err := s.make(st)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(from, to int) {
		t.Helper()
		numbers := make(chan int)
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				for n := range numbers {
					if err := begin(t.Context(), fmt.Sprintf("customer-%011d", n)); err != nil {
						t.Errorf("%s: %v", s.row, err)
					}
				}
			})
		}
		for n := from; n < to; n++ {
			numbers <- n
		}
		close(numbers)
		callers.Wait()
	}
	fill(0, 100) // connections, scripts and pages are not counted
	before := size()
	fill(100, many+100)
	return (size() - before) / many
}

func inMemory(t *testing.T) (store.Store, func() float64) {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return st, func() float64 {
		var m runtime.MemStats
		for range 3 { // what pools keep goes with the second collection
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
}

func onRedis(t *testing.T) (store.Store, func() float64) {
	client := redistest.Start(t).Client()
	st, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	used := regexp.MustCompile(`used_memory:(\d+)`)
	return st, func() float64 {
		info, err := client.Info(t.Context(), "memory").Result()
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseFloat(used.FindStringSubmatch(info)[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

func onPostgres(t *testing.T) (store.Store, func() float64) {
	pool, err := pgxpool.New(t.Context(), postgrestest.Start(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := pgstore.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	st, err := pgstore.NewFromPool(pool, pgstore.WithTimeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st, func() float64 {
		var n float64
		err := pool.QueryRow(t.Context(), `SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c
			JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'lk' AND c.relkind = 'r'`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}
