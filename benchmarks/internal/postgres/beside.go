package postgres

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// hot is a load on one row.
type hot struct {
	row        string
	goroutines int
	call       func(ctx context.Context) error
}

// beside measures loads on one row while an old transaction is open.
func beside(ctx context.Context, b *bench.B, y *yard) error {
	const (
		lone    = ours + ", a lock, one goroutine"
		crowded = ours + ", a lock, 64 goroutines on two stores"
		bucket  = ours + ", a bucket, 64 goroutines"
	)
	open, last := b.Time(60*time.Second), b.Time(10*time.Second)
	title := fmt.Sprintf("PostgreSQL: beside a transaction of %v", open)
	t := b.Table("postgres-old", title, fmt.Sprintf("One key. An idle REPEATABLE READ transaction has a snapshot; what is measured is the last %v of it, "+
		"and as long before it. Each is measured once.", last),
		bench.Column{Name: "before", Unit: "per s", Better: bench.Neither},
		bench.Column{Name: "beside it", Unit: "per s", Better: bench.Neither},
		bench.Column{Name: "slower", Unit: "x", Better: bench.Less},
		bench.Column{Name: "p50 before", Unit: "µs"},
		bench.Column{Name: "p50 beside it", Unit: "µs"},
		bench.Column{Name: "p99 beside it", Unit: "µs"},
	)
	loads, stop, err := y.hot(lone, crowded, bucket)
	if err != nil {
		return err
	}
	defer stop()
	var all []bench.Contender
	for _, l := range loads {
		all = append(all, bench.Contender{Row: l.row, Run: once(func(ctx context.Context) error {
			load := func(d time.Duration) (bench.LoadResult, error) {
				r := bench.Load(ctx, l.goroutines, d, func(ctx context.Context, _, _ int) error { return l.call(ctx) })
				return r, peerOf(ctx, b, l.row, title, r.Err)
			}
			if _, err := load(last / 10); err != nil { // connects
				return err
			}
			before, err := load(last)
			if err != nil {
				return err
			}
			var after bench.LoadResult
			if err := y.snapshot(ctx, func() error {
				if _, err := load(open - last); err != nil {
					return err
				}
				after, err = load(last)
				return err
			}); err != nil {
				return err
			}
			t.Add(l.row, "before", before.PerSecond)
			t.Add(l.row, "beside it", after.PerSecond)
			t.Add(l.row, "slower", before.PerSecond/after.PerSecond)
			t.Add(l.row, "p50 before", micros(before.P50))
			t.Add(l.row, "p50 beside it", micros(after.P50))
			t.Add(l.row, "p99 beside it", micros(after.P99))
			return nil
		})})
	}
	if err := b.Interleave(ctx, "postgres, beside an old transaction", all); err != nil {
		return err
	}
	t.Chart(title, "slower")
	b.Measured(besideLone, t.Value(lone, "slower"))
	b.Measured(besideCrowd, t.Value(crowded, "slower"))
	b.Measured(besideBucket, t.Value(bucket, "slower"))
	return nil
}

// snapshot calls fn while a transaction is open, and idle.
func (y *yard) snapshot(ctx context.Context, fn func() error) error {
	conn, err := pgx.Connect(ctx, y.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT count(*) FROM orders"); err != nil {
		return err
	}
	return fn()
}

// hot returns the loads, and what ends them.
func (y *yard) hot(lone, crowded, bucket string) (all []hot, stop func(), err error) {
	var ends []func()
	stop = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	lockers := make(map[string][]contest.Client)
	for _, c := range []contest.Contender{{Row: ours, Open: lockkeeper()}, {Row: ours, Open: lockkeeper()}, {Row: pglock, Open: byStatements(lockPglock, unlockPglock)}} {
		client, err := c.Open(y.dsn)
		if err != nil {
			return nil, stop, err
		}
		ends = append(ends, client.Close)
		lockers[c.Row] = append(lockers[c.Row], client)
	}
	locked := func(key string, clients ...contest.Client) func(context.Context) error {
		var mu sync.Mutex
		turn := 0
		return func(ctx context.Context) error {
			mu.Lock()
			turn++
			client := clients[turn%len(clients)]
			mu.Unlock()
			lock, err := client.Lock(ctx, key)
			if err != nil {
				return err
			}
			return lock.Unlock(ctx)
		}
	}
	st, err := open(y.dsn)
	if err != nil {
		return nil, stop, err
	}
	ends = append(ends, func() { _ = st.Close() })
	allow, err := limiter(st, "hot", tokenbucket.PerSecond(10_000_000))
	if err != nil {
		return nil, stop, err
	}
	decided := func(allow decide) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := allow(ctx, "hot")
			return err
		}
	}
	return []hot{
		{lone, 1, locked("lone", lockers[ours][0])},
		{crowded, many, locked("crowded", lockers[ours]...)},
		{pglock + ", one goroutine", 1, locked("lone", lockers[pglock]...)},
		{bucket, many, decided(allow)},
		{upserts + ", 64 goroutines", many, decided(y.byUpsert)},
	}, stop, nil
}
