package outage

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

const (
	overshootJob = "overshoot"
	processes    = 4
	goroutines   = 64   // of each process
	limit        = 1000 // of all processes together
)

// asking is the work of a process: each of its goroutines makes a number of requests.
type asking struct {
	Addr, Row, Key string
	Times          int
}

// answers are the decisions that a process got.
type answers struct {
	Allowed, Denied, Failed int64
	Took                    time.Duration
}

func runOvershoot(ctx context.Context, args []byte, begin func() error) (any, error) {
	var a asking
	if err := json.Unmarshal(args, &a); err != nil {
		return nil, err
	}
	for _, l := range limiters() {
		if l.row != a.Row {
			continue
		}
		process, err := l.open(a.Addr, limit, usual)
		if err != nil {
			return nil, err
		}
		defer process.close()
		if err := warm(ctx, func() error { _, err := process.allow(ctx, "warm"); return err }); err != nil {
			return nil, err
		}
		if err := begin(); err != nil {
			return nil, err
		}
		var (
			allowed, denied, failed atomic.Int64
			running                 sync.WaitGroup
			start                   = time.Now()
		)
		for range goroutines {
			running.Go(func() {
				for range a.Times {
					switch ok, err := process.allow(ctx, a.Key); {
					case err != nil:
						failed.Add(1)
					case ok:
						allowed.Add(1)
					default:
						denied.Add(1)
					}
				}
			})
		}
		running.Wait()
		return answers{allowed.Load(), denied.Load(), failed.Load(), time.Since(start)}, nil
	}
	return nil, fmt.Errorf("no limiter %q", a.Row)
}

// overshoot counts how many requests are allowed at a limit of a thousand.
func overshoot(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	times := max(b.Count(100), 8) // so that the requests exceed the limit
	t := b.Table("outage-overshoot", fmt.Sprintf("One limit of %d, %d processes of %d goroutines", limit, processes, goroutines),
		fmt.Sprintf("Each goroutine makes %d requests; the limit refills in a day.", times),
		bench.Column{Name: "allowed", Unit: "of 1,000"},
		bench.Column{Name: "beyond the limit", Unit: "requests", Better: bench.Less},
		bench.Column{Name: "failed", Unit: "requests", Better: bench.Less},
		bench.Column{Name: "time", Unit: "ms", Better: bench.Less},
	)
	var (
		all    []bench.Contender
		rounds atomic.Int64
	)
	for _, l := range limiters() {
		all = append(all, bench.Contender{Row: l.row, Run: func(ctx context.Context) error {
			key := fmt.Sprintf("overshoot-%d", rounds.Add(1))
			results, err := worker.Group[answers](ctx, processes, overshootJob, func(int) any {
				return asking{server.Addr(), l.row, key, times}
			}, func() {})
			if err != nil {
				return err
			}
			var sum answers
			for _, r := range results {
				sum.Allowed += r.Allowed
				sum.Failed += r.Failed
				sum.Took = max(sum.Took, r.Took)
			}
			t.Add(l.row, "allowed", float64(sum.Allowed))
			t.Add(l.row, "beyond the limit", float64(max(sum.Allowed-limit, 0)))
			t.Add(l.row, "failed", float64(sum.Failed))
			t.Add(l.row, "time", millis(sum.Took))
			return nil
		}})
	}
	return b.Interleave(ctx, "outage, overshoot", all)
}
