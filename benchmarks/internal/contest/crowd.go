package contest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

// Crowd is a number of goroutines, in one process or several, that compete for a lock or permits.
type Crowd struct {
	Section               string        // whose jobs are used, see [Jobs]
	Observer              *redis.Client // reads the load on Redis; nil where there is none
	Addr                  string
	Processes, Goroutines int
	Capacity              int // how many may hold at once
	Held, For             time.Duration
}

// task is the work of a worker process.
type task struct {
	Addr, Row         string
	Key               string // of waiters
	Goroutines, First int
	Held, For         time.Duration
}

func contestOf(section string) string { return section + ": contest" }

// Jobs are those of the worker processes of a section with such contenders.
func Jobs(section string, contenders func() []Contender) []worker.Job {
	job := func(name string, run func(ctx context.Context, c Contender, t task, begin func() error) (any, error)) worker.Job {
		return worker.Job{Name: name, Run: func(ctx context.Context, args []byte, begin func() error) (any, error) {
			var t task
			if err := json.Unmarshal(args, &t); err != nil {
				return nil, err
			}
			for _, c := range contenders() {
				if c.Row == t.Row {
					return run(ctx, c, t, begin)
				}
			}
			return nil, fmt.Errorf("no contender %q", t.Row)
		}}
	}
	return []worker.Job{job(contestOf(section), competeIn), job(waitersOf(section), waitIn)}
}

// competeIn is the part of this process in a contest.
func competeIn(ctx context.Context, c Contender, t task, begin func() error) (any, error) {
	client, err := c.Open(t.Addr)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := Warm(ctx, client); err != nil {
		return nil, err
	}
	if err := begin(); err != nil {
		return nil, err
	}
	return Run(ctx, []Client{client}, t.Goroutines, t.First, t.Held, t.For), nil
}

// Ceiling runs a contest without Redis.
func (c Crowd) Ceiling(ctx context.Context, local Local) Result {
	return Judge([]Record{Run(ctx, []Client{local}, c.Goroutines, 0, c.Held, c.For)}, c.Goroutines, c.Capacity, c.For)
}

// Run runs a contest of a contender.
func (c Crowd) Run(ctx context.Context, contender Contender) (Result, error) {
	var (
		load    redisinfo.Reading
		loadErr error
		reading sync.WaitGroup
	)
	read := func() { // only during the contest
		if c.Observer == nil {
			return
		}
		before, err := redisinfo.Read(ctx, c.Observer, contender.Sends...)
		if loadErr = err; err != nil {
			return
		}
		reading.Go(func() {
			Rest(c.For)
			var after redisinfo.Reading
			after, loadErr = redisinfo.Read(ctx, c.Observer, contender.Sends...)
			load = after.Sub(before)
		})
	}
	var records []Record
	if c.Processes == 1 {
		client, err := contender.Open(c.Addr)
		if err != nil {
			return Result{}, err
		}
		defer client.Close()
		if err := Warm(ctx, client); err != nil {
			return Result{}, err
		}
		read()
		records = []Record{Run(ctx, []Client{client}, c.Goroutines, 0, c.Held, c.For)}
	} else {
		var err error
		each := c.Goroutines / c.Processes
		records, err = worker.Group[Record](ctx, c.Processes, contestOf(c.Section), func(i int) any {
			return task{Addr: c.Addr, Row: contender.Row, Goroutines: each, First: i * each, Held: c.Held, For: c.For}
		}, read)
		if err != nil {
			return Result{}, err
		}
	}
	reading.Wait()
	r := Judge(records, c.Goroutines, c.Capacity, c.For)
	r.Load = load
	return r, loadErr
}
