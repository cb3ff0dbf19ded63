package delays

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// beat is the time in which an idle process may make a call for each of its queues.
const beat = 3 * time.Second

// idleFor returns for how long a process is measured.
func idleFor(s bench.Setting) time.Duration {
	switch s {
	case bench.Full:
		return 3 * beat
	case bench.Quick:
		return beat
	default:
		return beat / 10
	}
}

// idle measures what a process sends that waits for tasks of many queues.
func (y *yard) idle(ctx context.Context, b *bench.B) error {
	const (
		queues = 50
		calls  = "calls"
	)
	t := b.Table("delay-idle", "An idle process", fmt.Sprintf("One process waits for tasks of %d queues that have none. Calls are commands of "+
		"the client on Redis, and statements on PostgreSQL, also those of the connection that listens.", queues),
		bench.Column{Name: calls, Unit: "per queue in 3 s", Better: bench.Less})
	measure := func(ctx context.Context, row string, st store.Delays, sent func(context.Context) (int64, error)) error {
		ctx, end := context.WithCancel(ctx)
		defer end()
		for i := range queues {
			q, err := delay.New(st, "idle-"+strconv.Itoa(i), delay.WithLogger(quiet))
			if err != nil {
				return err
			}
			defer func() { _ = q.Close() }()
			go func() { _ = q.Run(ctx, 1, func(context.Context, *delay.Task) error { return nil }) }() // Close ends it
		}
		contest.Rest(min(idleFor(b.Setting()), time.Second)) // until all wait
		before, err := sent(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		contest.Rest(idleFor(b.Setting()))
		elapsed := time.Since(start)
		after, err := sent(ctx)
		t.Add(row, calls, float64(after-before)/queues*beat.Seconds()/elapsed.Seconds())
		return err
	}
	if err := b.Interleave(ctx, "delay, idle", []bench.Contender{
		{Row: onRedis, Run: func(ctx context.Context) error {
			client, st, err := openStore(y.redis.Addr())
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }()
			defer func() { _ = st.Close() }()
			return measure(ctx, onRedis, st, func(ctx context.Context) (int64, error) {
				r, err := redisinfo.Read(ctx, client)
				return r.Sent, err
			})
		}},
		{Row: onPostgres, Run: func(ctx context.Context) error {
			st, sent, err := openCounted(ctx, y.postgres.DSN())
			if err != nil {
				return err
			}
			defer func() { _ = st.Close() }()
			return measure(ctx, onPostgres, st, func(context.Context) (int64, error) { return sent.Load(), nil })
		}},
	}); err != nil {
		return err
	}
	b.Measured(redisIdle, t.Value(onRedis, calls))
	b.Measured(postgresIdle, t.Value(onPostgres, calls))
	return nil
}

// statements counts those of a pool.
type statements struct{ atomic.Int64 }

// TraceQueryStart implements pgx.QueryTracer.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	s.Add(1)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func openCounted(ctx context.Context, dsn string) (*pgstore.Store, *statements, error) {
	settings, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	sent := new(statements)
	settings.ConnConfig.Tracer = sent
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return nil, nil, err
	}
	defer pool.Close() // the store makes its own, with the same settings
	st, err := pgstore.NewFromPool(pool, pgstore.WithLogger(quiet))
	return st, sent, err
}
