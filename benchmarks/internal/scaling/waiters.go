package scaling

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
)

// waiters measures many goroutines of one process that wait for the same lock.
func (y *yard) waiters(ctx context.Context, b *bench.B) error {
	t := b.Table("scaling-waiters", "Waiters of one process for one lock",
		"The lock is held until all wait; then each acquires and releases it. The peers poll, or all try at once: only their waiting "+
			"is measured.",
		bench.Column{Name: "to wait", Unit: "µs each"},
		bench.Column{Name: "memory", Unit: "B each"},
		bench.Column{Name: "commands while waiting", Unit: "per s"},
		bench.Column{Name: "Redis CPU while waiting", Unit: "%"},
		bench.Column{Name: "lock and unlock", Unit: "µs each"},
		bench.Column{Name: "commands", Unit: "per acquisition"},
	)
	var all []bench.Contender
	for _, n := range sizes(b.Setting()) {
		for _, c := range contenders(b.Setting(), 1_000, "redsync", "rueidislock") {
			if n > c.most {
				continue
			}
			name := row(c.Row, n)
			all = append(all, bench.Contender{Row: name, Run: sparing(n, func(ctx context.Context) error {
				return y.line(ctx, b, t, name, c, n)
			})})
		}
	}
	return b.Interleave(ctx, "scaling, waiters", all)
}

// line measures n waiters for one lock.
func (y *yard) line(ctx context.Context, b *bench.B, t *bench.Table, name string, c contender, n int) error {
	ctx, cancelAll := context.WithTimeout(ctx, atMost)
	defer cancelAll()
	client, err := c.Open(y.addr)
	if err != nil {
		return err
	}
	defer client.Close()
	holder, err := client.Lock(ctx, "line")
	if err != nil {
		return err
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		running sync.WaitGroup
		mu      sync.Mutex
		failure error
		empty   = memory()
		start   = time.Now()
	)
	for range n {
		running.Go(func() {
			held, err := client.Lock(waiting, "line")
			if err == nil {
				err = held.Unlock(ctx)
			}
			if err != nil && waiting.Err() == nil {
				mu.Lock()
				defer mu.Unlock()
				failure = err
			}
		})
	}
	settle(ctx, 2*time.Second)
	queued := time.Since(start)
	if n >= few {
		t.Add(name, "to wait", micros(queued, n))
		t.Add(name, "memory", float64(memory()-empty)/float64(n))
	}
	perSecond, cpu, err := y.load(ctx, b.Time(1500*time.Millisecond), c.Sends)
	if err != nil {
		return err
	}
	t.Add(name, "commands while waiting", perSecond)
	t.Add(name, "Redis CPU while waiting", cpu)
	if c.Row != "Lockkeeper" {
		cancel()
		running.Wait()
		return holder.Unlock(ctx)
	}
	before, err := redisinfo.Read(ctx, y.observer, c.Sends...)
	if err != nil {
		return err
	}
	start = time.Now()
	if err := holder.Unlock(ctx); err != nil {
		return err
	}
	running.Wait()
	elapsed := time.Since(start)
	if failure != nil {
		return fmt.Errorf("a waiter: %w", failure)
	}
	after, err := redisinfo.Read(ctx, y.observer, c.Sends...)
	if err != nil {
		return err
	}
	t.Add(name, "lock and unlock", micros(elapsed, n))
	t.Add(name, "commands", float64(after.Sub(before).Sent)/float64(n))
	return nil
}
