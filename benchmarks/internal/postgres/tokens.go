package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

const (
	upserts = "an upsert each, over 64 connections"
	onRedis = "Lockkeeper on Redis"
	// crowd is the number of goroutines, and limited that of keys.
	crowd   = 256
	limited = 10_000
	// perDay is a limit that is not reached, with an interval of whole microseconds.
	perDay = 1_000_000
)

// decide reports whether a key is allowed.
type decide func(ctx context.Context, key string) (bool, error)

func limiter(st store.Buckets, name string, plan tokenbucket.Plan) (decide, error) {
	l, err := tokenbucket.New(st, name, plan)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		d, err := l.Allow(ctx, key)
		return d.Allowed, err
	}, nil
}

// byUpsert decides with a statement that writes what it allows, and returns no row for what it
// denies. The bucket is empty at a time, in µs, that each token puts off.
func (y *yard) byUpsert(ctx context.Context, key string) (bool, error) {
	const cost, capacity = 86_400_000_000 / perDay, 86_400_000_000
	sum := sha256.Sum256([]byte(key))
	var empties int64
	err := y.peer.QueryRow(ctx, "INSERT INTO buckets AS b (id, empties) VALUES ($1, lk.now_us() + $2::bigint) "+
		"ON CONFLICT (id) DO UPDATE SET empties = greatest(b.empties, lk.now_us()) + $2 "+
		"WHERE greatest(b.empties, lk.now_us()) + $2 - lk.now_us() <= $3::bigint RETURNING empties",
		[16]byte(sum[:16]), int64(cost), int64(capacity)).Scan(&empties)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

var errWrong = errors.New("allowed instead of denied, or denied instead of allowed")

// ask returns a question about random keys, whose answer is known.
func ask(limiter decide, keys []string, want bool) func(ctx context.Context, worker, i int) error {
	return func(ctx context.Context, worker, i int) error {
		allowed, err := limiter(ctx, keys[bench.Pick(worker, i, len(keys))])
		if err == nil && allowed != want {
			err = errWrong
		}
		return err
	}
}

func keys(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("user:%07d", i)
	}
	return names
}

// decisions are the columns of a table of them.
func decisions() []bench.Column {
	return []bench.Column{
		{Name: "decisions", Unit: "1,000/s", Better: bench.More},
		{Name: "p50", Unit: "µs", Better: bench.Less},
		{Name: "p99", Unit: "µs", Better: bench.Less},
		{Name: "allocations", Unit: "per decision", Better: bench.Less},
		{Name: "failed", Unit: "calls", Better: bench.Less},
	}
}

func addDecisions(t *bench.Table, row string, r bench.LoadResult) {
	t.Add(row, "decisions", r.PerSecond/1000)
	t.Add(row, "p50", micros(r.P50))
	t.Add(row, "p99", micros(r.P99))
	t.Add(row, "allocations", r.AllocsPerOp)
	t.Add(row, "failed", float64(r.Errors))
}

// allowed measures decisions that are charged.
func allowed(ctx context.Context, b *bench.B, y *yard) error {
	const title = "PostgreSQL: allowed, 256 goroutines, 10,000 keys"
	t := b.Table("postgres-allowed", title, "A million tokens a day for each key; buckets are in unlogged tables.", decisions()...)
	st, err := open(y.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	lockkeeper, err := limiter(st, "allowed", tokenbucket.PerDay(perDay))
	if err != nil {
		return err
	}
	names, remarks := keys(limited), make(bench.Remarks)
	var all []bench.Contender
	for row, limiter := range map[string]decide{ours: lockkeeper, upserts: y.byUpsert} {
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			bench.Load(ctx, crowd, b.Time(500*time.Millisecond), ask(limiter, names, true)) // connects, and writes the first rows
			r := bench.Load(ctx, crowd, b.Time(3*time.Second), ask(limiter, names, true))
			addDecisions(t, row, r)
			if r.Err != nil {
				remarks[row] = r.Err.Error()
			}
			return ctx.Err()
		}})
	}
	if err := b.Interleave(ctx, "postgres, allowed", all); err != nil {
		return err
	}
	t.Order(ours, upserts)
	t.Chart(title, "decisions")
	remarks.Note(b, title, all)
	b.Measured(allowedRate, t.Ratio("decisions", ours, upserts))
	return nil
}

// denied measures decisions about keys without tokens, which need no server.
func denied(ctx context.Context, b *bench.B, y *yard) error {
	const title = "PostgreSQL: denied, 256 goroutines, 10,000 keys"
	t := b.Table("postgres-denied", title, "One token a day for each key, which it has had. Round trips are messages to PostgreSQL.",
		append(decisions(), bench.Column{Name: "round trips", Unit: "per 1,000 decisions", Better: bench.Less})...)
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	there, err := redisstore.New(client, redisstore.WithLogger(quiet))
	if err != nil {
		return err
	}
	defer func() { _ = there.Close() }()
	here, trips, err := openCounted(ctx, y.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	names, remarks := keys(b.Count(limited)), make(bench.Remarks)
	var all []bench.Contender
	for row, st := range map[string]store.Buckets{ours: here, onRedis: there} {
		limiter, err := limiter(st, "denied", tokenbucket.PerDay(1))
		if err != nil {
			return err
		}
		if err := exhaust(ctx, limiter, names); err != nil {
			return fmt.Errorf("%s: %w", row, err)
		}
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			before := trips.Load()
			r := bench.Load(ctx, crowd, b.Time(time.Second), ask(limiter, names, false))
			addDecisions(t, row, r)
			if row == ours {
				t.Add(row, "round trips", 1000*float64(trips.Load()-before)/float64(max(r.Ops, 1)))
			}
			if r.Err != nil {
				remarks[row] = r.Err.Error()
			}
			return ctx.Err()
		}})
	}
	if err := b.Interleave(ctx, "postgres, denied", all); err != nil {
		return err
	}
	t.Order(ours, onRedis)
	b.Measured(deniedTrips, t.Value(ours, "round trips"))
	b.Measured(deniedRate, t.Ratio("decisions", ours, onRedis))
	return nil
}

// exhaust takes the only token of every key, until it is denied.
func exhaust(ctx context.Context, limiter decide, names []string) error {
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range many {
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(len(names)); i = next.Add(1) - 1 {
				for {
					if allowed, err := limiter(ctx, names[i]); err != nil {
						return err
					} else if !allowed {
						break
					}
				}
			}
			return nil
		})
	}
	return group.Wait()
}
