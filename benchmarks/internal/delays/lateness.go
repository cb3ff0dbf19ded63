package delays

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

const (
	processes   = 4
	latenessJob = "delay-lateness"
)

// Jobs are those of the worker processes.
func Jobs() []worker.Job { return []worker.Job{{Name: latenessJob, Run: runTasks}} }

type latenessArgs struct {
	Row, Addr, Name string
	For             time.Duration
}

// runTasks runs tasks for a time, and returns how late they began.
func runTasks(ctx context.Context, args []byte, begin func() error) (any, error) {
	var a latenessArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return nil, err
	}
	q, err := those(a.Row)[0].open(ctx, a.Addr, a.Name)
	if err != nil {
		return nil, err
	}
	defer q.close()
	if err := begin(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.For)
	defer cancel()
	var (
		mu   sync.Mutex
		late []time.Duration
	)
	err = q.run(ctx, func(due time.Time) {
		d := time.Since(due)
		mu.Lock()
		defer mu.Unlock()
		late = append(late, d)
	})
	return late, err
}

// plan is when tasks are due, and how long processes run.
type plan struct {
	tasks         int
	rest, spread  time.Duration // before the first task is put; until the last one is due
	ours, polling time.Duration // after that
}

// planOf returns the plan of a setting. The tiny one does not wait until peers poll.
func planOf(s bench.Setting) plan {
	switch s {
	case bench.Full:
		return plan{300, time.Second, 8 * time.Second, 2 * time.Second, 8 * time.Second}
	case bench.Quick:
		return plan{100, time.Second, 3 * time.Second, time.Second, 8 * time.Second}
	default:
		return plan{10, 100 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond, 200 * time.Millisecond}
	}
}

// lateness measures how late tasks begin in processes that have nothing else to do.
func (y *yard) lateness(ctx context.Context, b *bench.B) error {
	const (
		median = "p50"
		tail   = "p99"
		begun  = "begun"
	)
	p := planOf(b.Setting())
	t := b.Table("delay-lateness", fmt.Sprintf("Lateness, %d idle processes", processes),
		fmt.Sprintf("%d tasks are put one after the other, due at random times of the next %v. From the time at which a task is due, by the clock "+
			"of the process that puts it, to the call of its function.", p.tasks, p.spread),
		bench.Column{Name: median, Unit: "ms", Better: bench.Less},
		bench.Column{Name: tail, Unit: "ms", Better: bench.Less},
		bench.Column{Name: begun, Unit: "%", Better: bench.More, Format: "%.0f"},
	)
	add := func(row string, late []time.Duration) {
		t.Add(row, median, millis(bench.Percentile(late, 0.50)))
		t.Add(row, tail, millis(bench.Percentile(late, 0.99)))
		t.Add(row, begun, 100*float64(len(late))/float64(p.tasks))
	}
	var all []bench.Contender
	for _, c := range those(onRedis, asynqRow, onPostgres, riverRow) {
		all = append(all, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
			if err := y.clear(ctx); err != nil {
				return err
			}
			late, err := y.begin(ctx, c, p)
			if err != nil {
				return err
			}
			add(c.row, late)
			return nil
		}})
	}
	all = append(all, bench.Contender{Row: timersFloor, Run: func(ctx context.Context) error {
		if err := y.clear(ctx); err != nil {
			return err
		}
		late, err := timers(ctx, y.postgres.DSN(), p)
		if err != nil {
			return err
		}
		add(timersFloor, late)
		return nil
	}})
	t.Reference(timersFloor)
	if err := b.Interleave(ctx, "delay, lateness", all); err != nil {
		return err
	}
	b.Measured(redisMedian, t.Value(onRedis, median))
	b.Measured(redisTail, t.Value(onRedis, tail))
	b.Measured(redisAsynq, t.Ratio(median, onRedis, asynqRow))
	b.Measured(postgresMedian, t.Ratio(median, onPostgres, timersFloor))
	b.Measured(postgresTail, t.Value(onPostgres, tail))
	b.Measured(postgresRiver, t.Ratio(median, onPostgres, riverRow))
	return nil
}

// begin puts tasks for idle processes, and returns how late they began.
func (y *yard) begin(ctx context.Context, c contender, p plan) ([]time.Duration, error) {
	name := fmt.Sprintf("lateness-%d", time.Now().UnixNano())
	q, err := c.open(ctx, y.addr(c), name)
	if err != nil {
		return nil, err
	}
	defer q.close()
	after := p.polling
	if c.row == onRedis || c.row == onPostgres {
		after = p.ours
	}
	put := make(chan error, 1)
	results, err := worker.Group[[]time.Duration](ctx, processes, latenessJob, func(int) any {
		return latenessArgs{c.row, y.addr(c), name, p.rest + p.spread + after}
	}, func() {
		go func() {
			contest.Rest(p.rest)
			put <- p.put(func(t task) error { return q.put(ctx, []task{t}) })
		}()
	})
	if err != nil {
		return nil, err
	}
	var late []time.Duration
	for _, some := range results {
		late = append(late, some...)
	}
	return late, <-put
}

func (p plan) put(put func(task) error) error {
	last := time.Now().Add(p.spread)
	for i := range p.tasks {
		due := time.Now().Add(rand.N(max(time.Until(last), 1)))
		if err := put(task{"key-" + strconv.Itoa(i), due}); err != nil {
			return err
		}
	}
	return nil
}
