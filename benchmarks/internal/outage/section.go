// Package outage measures behaviour under adverse conditions: many processes on one limit, a burst, a distant Redis, and
// one that dies.
package outage

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/locks"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Sections are the measurements under adverse conditions.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "outage",
		Title: "Overshoot, bursts, distance and outage",
		About: "Four processes of 64 goroutines exceed a limit, once and for five seconds; thousands of locks are requested at once; Redis is far away, behind a proxy " +
			"that delays; and Redis is killed under load, and restarted empty. Lockkeeper's timeout is 250 ms, with a circuit breaker; " +
			"its peers wait for as long as their client does.",
		Full:    285 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

// Jobs are those of the section's worker processes.
func Jobs() []worker.Job {
	return []worker.Job{{Name: overshootJob, Run: runOvershoot}, {Name: paceJob, Run: runPace}}
}

func run(ctx context.Context, b *bench.B) error {
	for _, part := range []func(context.Context, *bench.B) error{overshoot, keepPace, bursts, distance, outages} {
		if err := part(ctx, b); err != nil {
			return err
		}
	}
	b.Note(locks.Options)
	b.Note("redis_rate: a go-redis client with its defaults, which include timeouts of 5 s and three retries.")
	return nil
}

// limiter is a library with limits.
type limiter struct {
	row  string
	open func(addr string, limit int, timeout time.Duration) (allowing, error)
}

// allowing is the access of one process to a limit.
type allowing struct {
	allow func(ctx context.Context, key string) (bool, error)
	close func()
}

// limiters are Lockkeeper and redis_rate. A limit refills in a day, longer than any measurement.
func limiters() []limiter {
	return []limiter{
		{"Lockkeeper", func(addr string, limit int, timeout time.Duration) (allowing, error) {
			l, end, err := openLimiter(addr, tokenbucket.PerDay(int64(limit)), timeout)
			return allowing{func(ctx context.Context, key string) (bool, error) {
				d, err := l.Allow(ctx, key)
				return d.Allowed, err
			}, end}, err
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

// openLimiter returns a limiter with a store of its own, as a process has it.
func openLimiter(addr string, plan tokenbucket.Plan, timeout time.Duration, options ...tokenbucket.Option) (*tokenbucket.Limiter, func(), error) {
	client := redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: timeout, WriteTimeout: timeout,
	})
	store, err := redisstore.New(client, redisstore.WithTimeout(timeout), redisstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	end := func() {
		_ = store.Close()
		_ = client.Close()
	}
	l, err := tokenbucket.New(store, "bench", plan, options...)
	if err != nil {
		end()
		return nil, nil, err
	}
	return l, end, nil
}

// usual is the default timeout of Lockkeeper's store.
const usual = 250 * time.Millisecond

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func errOf(row string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", row, err)
}
