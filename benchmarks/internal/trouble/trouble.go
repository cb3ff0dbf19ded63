// Package trouble measures what happens when something is wrong: many processes on one limit, a
// burst, a Redis that is far away, and one that dies.
package trouble

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/locks"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Sections are the measurements of trouble.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "trouble",
		Title: "Trouble",
		About: "Four processes with 64 goroutines each ask for more than a limit allows; thousands of locks are asked for at the same " +
			"moment; Redis is far away, behind a proxy on loopback that delays what goes through it; and Redis is killed " +
			"under load, and started again, empty, on the same port. Lockkeeper answers in its own time-out of 250 ms, and at " +
			"once where several calls in a row have failed; its peers wait for as long as their client does.",
		Full: 220 * time.Second,
		Run:  run,
	}}
}

// Jobs are what the section's worker processes do.
func Jobs() []worker.Job {
	return []worker.Job{{Name: overshootJob, Run: runOvershoot}}
}

func run(ctx context.Context, b *bench.B) error {
	for _, part := range []func(context.Context, *bench.B) error{overshoot, bursts, distance, outages} {
		if err := part(ctx, b); err != nil {
			return err
		}
	}
	b.Note(locks.Options)
	b.Note("redis_rate: a go-redis client with its defaults, time-outs of 5 s and three retries among them.")
	return nil
}

// limiter is one way to limit: a library.
type limiter struct {
	row  string
	open func(addr string, limit int, timeout time.Duration) (allowing, error)
}

// allowing is one process's access to a limit.
type allowing struct {
	allow func(ctx context.Context, key string) (bool, error)
	close func()
}

// limiters are Lockkeeper and redis_rate. A limit is refilled in a day, which is never here.
func limiters() []limiter {
	return []limiter{
		{"Lockkeeper", func(addr string, limit int, timeout time.Duration) (allowing, error) {
			client := redis.NewClient(&redis.Options{
				Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: timeout, WriteTimeout: timeout,
			})
			store, err := redisstore.New(client, redisstore.WithTimeout(timeout), redisstore.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil {
				return allowing{}, err
			}
			l, err := tokenbucket.New(store, "bench", tokenbucket.PerDay(int64(limit)))
			if err != nil {
				return allowing{}, err
			}
			return allowing{
				func(ctx context.Context, key string) (bool, error) {
					d, err := l.Allow(ctx, key)
					return d.Allowed, err
				},
				func() {
					_ = store.Close()
					_ = client.Close()
				},
			}, nil
		}},
		{"redis_rate", func(addr string, limit int, _ time.Duration) (allowing, error) {
			client := redis.NewClient(&redis.Options{Addr: addr})
			l := redis_rate.NewLimiter(client)
			return allowing{
				func(ctx context.Context, key string) (bool, error) {
					r, err := l.Allow(ctx, key, redis_rate.Limit{Rate: limit, Burst: limit, Period: 24 * time.Hour})
					return err == nil && r.Allowed > 0, err
				},
				func() { _ = client.Close() },
			}, nil
		}},
	}
}

// usual is the time-out that Lockkeeper's store has by default.
const usual = 250 * time.Millisecond

// add adds a value, unless there was nothing to measure.
func add(t *bench.Table, row, column string, value float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		t.Add(row, column, value)
	}
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func errOf(row string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", row, err)
}
