package delays

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/delay"
)

const million = 1_000_000

// The columns of waiting tasks.
const (
	puts    = "put"
	cancels = "cancel"
	takes   = "take"
	size    = "memory"
)

// waiting measures steps of a queue in which few and many tasks wait.
func (y *yard) waiting(ctx context.Context, b *bench.B) error {
	few, many := 1_000, b.Count(million)
	if b.Setting() == bench.Tiny {
		few, many = 30, 300
	}
	t := b.Table("delay-waiting", "Steps beside waiting tasks", "One goroutine. p50 of a put of a new key, of its cancel, and of the take of a task "+
		"that is due. The others are due within a day. Memory is that of Redis; on PostgreSQL, the table and its indexes.",
		bench.Column{Name: puts, Unit: "µs, p50", Better: bench.Less},
		bench.Column{Name: cancels, Unit: "µs, p50", Better: bench.Less},
		bench.Column{Name: takes, Unit: "µs, p50", Better: bench.Less},
		bench.Column{Name: size, Unit: "B per task"},
	)
	for _, c := range those(onRedis, onPostgres) {
		var contenders []bench.Contender
		for _, n := range []int{few, many} {
			row := fmt.Sprintf("%s, %d waiting", c.row, n)
			opened, err := c.open(ctx, y.addr(c), fmt.Sprintf("waiting-%d", n))
			if err != nil {
				return err
			}
			defer opened.close()
			q := opened.(*ours).queue
			bytes, err := y.fill(ctx, c, q, n)
			if err != nil {
				return err
			}
			if n == many {
				t.Add(row, size, bytes/float64(n))
			}
			contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error { return steps(ctx, b, t, row, q) }})
		}
		if err := b.InterleaveFinely(ctx, "waiting, "+c.row, bench.PartsOfWaits, contenders); err != nil {
			return err
		}
		ratio := func(column string) float64 { return t.Ratio(column, contenders[1].Row, contenders[0].Row) }
		target := redisMillion
		if c.postgres {
			target = postgresMillion
		}
		b.Measured(target, worst(ratio(puts), ratio(cancels), ratio(takes)))
	}
	return nil
}

// steps measures the steps of a queue.
func steps(ctx context.Context, b *bench.B, t *bench.Table, row string, q *delay.Queue) error {
	took := make(map[string][]time.Duration)
	timed := func(column string, step func() error) error {
		start := time.Now()
		err := step()
		took[column] = append(took[column], time.Since(start))
		return err
	}
	put := func(key string, after time.Duration) error {
		_, err := q.Put(ctx, key, payload(time.Now()), after)
		return err
	}
	for end, i := time.Now().Add(b.Time(8*time.Second)), 0; time.Now().Before(end); i++ {
		key := strconv.FormatInt(end.UnixNano()+int64(i), 36)
		var taken *delay.Task
		if err := errors.Join(
			timed(puts, func() error { return put(key, rand.N(day)) }),
			timed(cancels, func() error {
				how, err := q.Cancel(ctx, key)
				if err == nil && how != delay.Prevented {
					err = fmt.Errorf("cancelled: %s", how)
				}
				return err
			}),
			put(key+"-due", 0),
			timed(takes, func() (err error) {
				taken, err = q.Take(ctx)
				return err
			}),
		); err != nil {
			return err
		}
		if err := taken.Done(ctx); err != nil {
			return err
		}
	}
	for _, column := range []string{puts, cancels, takes} {
		t.Add(row, column, micros(bench.Percentile(took[column], 0.50)))
	}
	return nil
}

const day = 24 * time.Hour

// fill puts n tasks that are due from an hour on, and returns the memory that they take.
func (y *yard) fill(ctx context.Context, c contender, q *delay.Queue, n int) (bytes float64, err error) {
	before, err := y.used(ctx, c)
	if err != nil {
		return 0, err
	}
	if c.postgres {
		err = y.insert(ctx, q.Name(), n)
	} else {
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(256)
		for i := range n {
			group.Go(func() error {
				_, err := q.Put(ctx, "waiting-"+strconv.Itoa(i), payload(time.Now()), time.Hour+rand.N(day))
				return err
			})
		}
		err = group.Wait()
	}
	if err != nil {
		return 0, err
	}
	after, err := y.used(ctx, c)
	return after - before, err
}

// insert writes the rows of n tasks in one statement, since puts would take minutes.
func (y *yard) insert(ctx context.Context, queue string, n int) error {
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO lk.tasks (queue, key, put, due, outcome, payload)
			SELECT '%s', convert_to('waiting-' || i, 'UTF8'), lpad(i::text, 22, '0'), lk.now_us() + 3600000000 + (random() * 86400000000)::bigint, 'C',
			convert_to('0' || lpad(i::text, 20, '0'), 'UTF8') FROM generate_series(1, %d) i`, queue, n),
		"VACUUM ANALYZE lk.tasks",
	} {
		if _, err := y.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// used returns the memory of Redis, or the size of the table and its indexes.
func (y *yard) used(ctx context.Context, c contender) (bytes float64, err error) {
	if c.postgres {
		err = y.pool.QueryRow(ctx, "SELECT pg_total_relation_size('lk.tasks')::float8").Scan(&bytes)
		return bytes, err
	}
	n, err := y.redis.UsedMemory(ctx)
	return float64(n), err
}
