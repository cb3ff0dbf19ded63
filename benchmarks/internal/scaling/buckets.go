package scaling

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// asking is the number of goroutines that take tokens.
const asking = 64

// perDay is a limit that is not reached. A key is kept until its bucket is full again, 7.2 s after
// one token: longer than one pass over all keys takes.
const perDay = 12_000

// buckets measures many limited keys.
func (y *yard) buckets(ctx context.Context, b *bench.B) error {
	t := b.Table("scaling-buckets", "Limited keys",
		"64 goroutines take tokens of random keys; all are allowed.",
		bench.Column{Name: "first decision", Unit: "µs each"},
		bench.Column{Name: "decisions", Unit: "per s"},
		bench.Column{Name: "p99", Unit: "ms"},
		bench.Column{Name: "Redis memory", Unit: "B per key"},
	)
	var all []bench.Contender
	for _, n := range sizes(b.Setting()) {
		ours, theirs := row("Lockkeeper", n), row("redis_rate", n)
		all = append(all,
			bench.Contender{Row: ours, Run: func(ctx context.Context) error {
				client := redis.NewClient(&redis.Options{
					Addr: y.addr, ContextTimeoutEnabled: true, ReadTimeout: 250 * time.Millisecond, WriteTimeout: 250 * time.Millisecond,
				})
				defer func() { _ = client.Close() }()
				store, err := redisstore.New(client)
				if err != nil {
					return err
				}
				defer store.Close()
				limiter, err := tokenbucket.New(store, "bench", tokenbucket.PerDay(perDay))
				if err != nil {
					return err
				}
				return y.limited(ctx, b, t, ours, n, func(ctx context.Context, key string) error {
					_, err := limiter.Allow(ctx, key)
					return err
				})
			}},
			bench.Contender{Row: theirs, Run: func(ctx context.Context) error {
				client := redis.NewClient(&redis.Options{Addr: y.addr})
				defer func() { _ = client.Close() }()
				limiter := redis_rate.NewLimiter(client)
				return y.limited(ctx, b, t, theirs, n, func(ctx context.Context, key string) error {
					_, err := limiter.Allow(ctx, key, redis_rate.Limit{Rate: perDay, Burst: perDay, Period: 24 * time.Hour})
					return err
				})
			}},
		)
	}
	return b.Interleave(ctx, "scaling, keys", all)
}

// limited takes a token of each of n keys, and then of random keys.
func (y *yard) limited(ctx context.Context, b *bench.B, t *bench.Table, name string, n int, allow func(context.Context, string) error) error {
	if err := y.server.Flush(ctx); err != nil {
		return err
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "key-" + strconv.Itoa(i)
	}
	if err := each(asking, func(int) error { return allow(ctx, "warm") }); err != nil { // connects
		return err
	}
	before, err := redisinfo.Read(ctx, y.observer)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := each(n, func(i int) error { return allow(ctx, keys[i]) }); err != nil {
		return err
	}
	t.Add(name, "first decision", micros(time.Since(start), n))
	after, err := redisinfo.Read(ctx, y.observer)
	if err != nil {
		return err
	}
	if n >= few {
		t.Add(name, "Redis memory", float64(after.Sub(before).Memory)/float64(n))
	}
	r := bench.Load(ctx, asking, b.Time(time.Second), func(ctx context.Context, _, _ int) error {
		return allow(ctx, keys[rand.IntN(n)])
	})
	if r.Err != nil {
		return r.Err
	}
	t.Add(name, "decisions", r.PerSecond)
	t.Add(name, "p99", micros(r.P99, 1_000))
	return nil
}
