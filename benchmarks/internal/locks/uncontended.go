package locks

import (
	"context"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
)

func uncontended(ctx context.Context, b *bench.B, s *floor.Site, addr string) error {
	const title = "Lock and unlock, uncontended"
	columns := floor.Columns("lock and unlock")
	for i := range columns {
		columns[i].Better = bench.Less
	}
	t := b.Table("locks-uncontended", title, "One goroutine, one key. A lock with a fence or a queue takes a script to lock and one "+
		"to unlock; two scripts that read and write a key are the floor of such locks.", columns...)
	contenders := s.Rows(b, t, floor.TwoPings, floor.TwoScripts, floor.WithArguments)
	for _, c := range Contenders() {
		if c.Tuned { // for contended locks
			continue
		}
		client, err := c.Open(addr) // once: what a client does when it begins is no part of a lock's time
		if err != nil {
			return err
		}
		defer client.Close()
		if err := contest.Warm(ctx, client); err != nil {
			return err
		}
		contenders = append(contenders, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			d := b.Time(time.Second)
			bounded, cancel := context.WithTimeout(ctx, d+10*time.Second)
			defer cancel()
			return peer(ctx, b, c.Row, title, s.Alone(bounded, t, c.Row, d, func(ctx context.Context) error {
				lock, err := client.Lock(ctx, "uncontended")
				if err != nil {
					return err
				}
				return lock.Unlock(ctx)
			}, c.Sends...))
		}})
	}
	if err := b.InterleaveFinely(ctx, "locks, uncontended", bench.PartsOfCalls, contenders); err != nil {
		return err
	}
	t.Chart(title, "p50", "p99")
	b.Measured(aloneToScripts, t.Ratio("p50", ours, floor.TwoScripts))
	b.Measured(aloneToRedislock, t.Ratio("p50", ours, sparse))
	// Rounded, since other goroutines of the process may allocate, too.
	b.Measured(aloneAllocations, math.Round(10*t.Value(ours, "allocations"))/10)
	return nil
}
