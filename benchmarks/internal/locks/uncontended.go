package locks

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

func uncontended(ctx context.Context, b *bench.B, addr string) error {
	t := b.Table("locks-uncontended", "Lock and unlock, uncontended",
		"One goroutine, one key. A lock with a fence or a queue takes a script to lock and one to unlock; the reference row of two "+
			"scripts that read and write a key shows the least that such scripts cost.",
		bench.Column{Name: "p50", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "p99", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "allocations", Unit: "per lock and unlock", Better: bench.Less},
	)
	measure := func(ctx context.Context, row string, both func(ctx context.Context) error) error {
		d := b.Time(time.Second)
		ctx, cancel := context.WithTimeout(ctx, d+5*time.Second) // a library may block forever
		defer cancel()
		if err := both(ctx); err != nil {
			return err
		}
		r := bench.Load(ctx, 1, d, func(ctx context.Context, _, _ int) error { return both(ctx) })
		if r.Err != nil {
			b.Note(fmt.Sprintf("%s, uncontended: %v", row, r.Err))
		}
		t.Add(row, "p50", micros(r.P50))
		t.Add(row, "p99", micros(r.P99))
		t.Add(row, "allocations", r.AllocsPerOp)
		return nil
	}
	t.Reference(twoPings, twoScripts)
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	least := redis.NewScript("redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], '1', 'PX', 30000)")
	contenders := []bench.Contender{
		{Row: twoPings, Run: func(ctx context.Context) error {
			return measure(ctx, twoPings, func(ctx context.Context) error {
				if err := client.Ping(ctx).Err(); err != nil {
					return err
				}
				return client.Ping(ctx).Err()
			})
		}},
		{Row: twoScripts, Run: func(ctx context.Context) error {
			return measure(ctx, twoScripts, func(ctx context.Context) error {
				if err := least.Run(ctx, client, []string{"floor"}).Err(); err != nil {
					return err
				}
				return least.Run(ctx, client, []string{"floor"}).Err()
			})
		}},
	}
	for _, c := range Contenders() {
		if c.Tuned { // for contended locks
			continue
		}
		contenders = append(contenders, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			client, err := c.Open(addr)
			if err != nil {
				return err
			}
			defer client.Close()
			if err := warm(ctx, client); err != nil {
				return err
			}
			return measure(ctx, c.Row, func(ctx context.Context) error {
				lock, err := client.Lock(ctx, "uncontended")
				if err != nil {
					return err
				}
				return lock.Unlock(ctx)
			})
		}})
	}
	if err := b.Interleave(ctx, "locks, uncontended", contenders); err != nil {
		return fmt.Errorf("uncontended: %w", err)
	}
	t.Chart("Lock and unlock, uncontended", "p50", "p99")
	if v, ok := ratio(t, "p50", "Lockkeeper", twoPings); ok {
		b.Target(bench.Target{What: "lock and unlock, uncontended: p50 against two PINGs", Value: v, AtLeast: 1.05, Reach: 1.05,
			Better: bench.Less, Unit: "x"})
	}
	if v, ok := t.Median("Lockkeeper", "allocations"); ok {
		b.Target(bench.Target{What: "lock and unlock, uncontended: allocations", Value: v, AtLeast: 30, Reach: 20,
			Better: bench.Less})
	}
	return nil
}
