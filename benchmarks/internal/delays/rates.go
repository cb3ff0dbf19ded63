package delays

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

const (
	// workers is the number of goroutines that put, each batch tasks at a time.
	workers = 8
	batch   = 10
)

// patience bounds the time that the tasks take.
const patience = 5 * time.Minute

// The columns of rates.
const (
	rate = "rate"
	cpu  = "server CPU"
)

// rates measures put, take and done on both servers.
func (y *yard) rates(ctx context.Context, b *bench.B) error {
	note := fmt.Sprintf("%d goroutines put %d tasks, %d at a time, which are due at once; then one process runs them, %d at a time in the rows of "+
		"Lockkeeper. The rate is that of both together.", workers, b.Count(allTasks), batch, workers*batch)
	onServer := func(id, title, also string, floor string, open func(context.Context, string) (*plain, error), rows ...string) (*bench.Table, error) {
		columns := []bench.Column{{Name: rate, Unit: "tasks per s", Better: bench.More}}
		all := those(rows...)
		if !all[0].postgres {
			columns = append(columns, bench.Column{Name: cpu, Unit: "µs per task", Better: bench.Less})
		}
		t := b.Table(id, title, note+also, columns...)
		t.Reference(floor)
		contenders := []bench.Contender{{Row: floor, Run: func(ctx context.Context) error {
			p, err := open(ctx, y.addr(all[0]))
			if err != nil {
				return err
			}
			defer p.close()
			return y.rate(ctx, b, t, all[0], floor, p.burn)
		}}}
		for _, c := range all {
			contenders = append(contenders, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
				q, err := c.open(ctx, y.addr(c), "rates")
				if err != nil {
					return err
				}
				defer q.close()
				return y.rate(ctx, b, t, c, c.row, func(ctx context.Context, n int) error { return burn(ctx, q, n) })
			}})
		}
		t.Chart(title, rate)
		return t, b.Interleave(ctx, title, contenders)
	}
	t, err := onServer("delay-redis", "Redis: put, take and done", "", scriptsFloor, plainRedis, onRedis, asynqRow)
	if err != nil {
		return err
	}
	b.Measured(redisRate, t.PairedRatio(rate, onRedis, scriptsFloor))
	t, err = onServer("delay-postgres", "PostgreSQL: put, take and done",
		" river inserts ten in a statement; with its defaults it runs 100 in 100 ms.",
		statementsFloor, plainPostgres, onPostgres, inTransactions, riverFast)
	if err != nil {
		return err
	}
	b.Measured(postgresRate, t.PairedRatio(rate, onPostgres, statementsFloor))
	return nil
}

// allTasks is the number of tasks of a measurement.
const allTasks = 20_000

// rate adds a rate, and the processor time of Redis, to a row.
func (y *yard) rate(
	ctx context.Context, b *bench.B, t *bench.Table, c contender, row string, burn func(ctx context.Context, n int) error,
) error {
	if err := y.clear(ctx); err != nil {
		return err
	}
	n := b.Count(allTasks)
	if err := burn(ctx, n/10); err != nil { // connects
		return err
	}
	before, err := y.redis.CPU(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := burn(ctx, n); err != nil {
		return err
	}
	t.Add(row, rate, float64(n)/time.Since(start).Seconds())
	after, err := y.redis.CPU(ctx)
	if !c.postgres {
		t.Add(row, cpu, micros(float64(after-before))/float64(n))
	}
	return err
}

// clear removes what peers keep of tasks that are done, and what others have left.
func (y *yard) clear(ctx context.Context) error {
	if err := y.redis.Flush(ctx); err != nil {
		return err
	}
	_, err := y.pool.Exec(ctx, "TRUNCATE river_job, plain_tasks")
	return err
}

// burn puts n tasks, and runs them.
func burn(ctx context.Context, q tasks, n int) error {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := batches(n, func(keys []string) error {
		all := make([]task, len(keys))
		for i, key := range keys {
			all[i] = task{key, time.Now()}
		}
		return q.put(ctx, all)
	}); err != nil {
		return err
	}
	var begun atomic.Int64
	err := q.run(ctx, func(time.Time) {
		if begun.Add(1) == int64(n) {
			stop()
		}
	})
	if err == nil && begun.Load() < int64(n) {
		err = fmt.Errorf("%d of %d tasks were begun in %v", begun.Load(), n, patience)
	}
	return err
}

// burn passes n tasks.
func (p *plain) burn(ctx context.Context, n int) error {
	return batches(n, func(keys []string) error { return p.pass(ctx, keys) })
}

// batches calls fn for n new keys, a batch at a time in each of the workers.
func batches(n int, fn func(keys []string) error) error {
	var (
		group errgroup.Group
		began = strconv.FormatInt(time.Now().UnixNano(), 36)
	)
	group.SetLimit(workers)
	for first := 0; first < n; first += batch {
		keys := make([]string, min(batch, n-first))
		for i := range keys {
			keys[i] = began + "-" + strconv.Itoa(first+i)
		}
		group.Go(func() error { return fn(keys) })
	}
	return group.Wait()
}
