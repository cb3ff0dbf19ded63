package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
)

// alone measures uncontended locks.
func alone(ctx context.Context, b *bench.B, y *yard) error {
	const title = "Lock and unlock, keys of one's own"
	t := b.Table("postgres-locks", title, "Each goroutine locks and unlocks a key that no other one uses.",
		bench.Column{Name: "p50", Unit: "µs, 1 goroutine", Better: bench.Less},
		bench.Column{Name: "p99", Unit: "µs, 1 goroutine", Better: bench.Less},
		bench.Column{Name: "rate", Unit: "per s, 1 goroutine", Better: bench.More},
		bench.Column{Name: "rate of 64", Unit: "per s, 64 goroutines", Better: bench.More},
		bench.Column{Name: "p99 of 64", Unit: "µs, 64 goroutines", Better: bench.Less},
		bench.Column{Name: "allocations", Unit: "per lock and unlock", Better: bench.Less},
	)
	t.Reference(commits)
	clients := make(map[string]contest.Client)
	for _, c := range uncontended() {
		client, err := c.Open(y.dsn)
		if err != nil {
			return err
		}
		defer client.Close()
		if err := contest.Warm(ctx, client); err != nil {
			return fmt.Errorf("%s: %w", c.Row, err)
		}
		clients[c.Row] = client
	}
	load := func(ctx context.Context, row string, goroutines int, d time.Duration) bench.LoadResult {
		return bench.Load(ctx, goroutines, d, func(ctx context.Context, worker, _ int) error {
			lock, err := clients[row].Lock(ctx, "own-"+strconv.Itoa(worker))
			if err != nil {
				return err
			}
			return lock.Unlock(ctx)
		})
	}
	var one, crowd []bench.Contender
	for _, c := range uncontended() {
		if !c.Tuned { // for many goroutines
			one = append(one, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
				r := load(ctx, c.Row, 1, b.Time(time.Second))
				t.Add(c.Row, "p50", micros(r.P50))
				t.Add(c.Row, "p99", micros(r.P99))
				t.Add(c.Row, "rate", r.PerSecond)
				t.Add(c.Row, "allocations", r.AllocsPerOp)
				return peerOf(ctx, b, c.Row, title, r.Err)
			}})
		}
		crowd = append(crowd, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			load(ctx, c.Row, many, b.Time(250*time.Millisecond)) // connects
			r := load(ctx, c.Row, many, b.Time(2*time.Second))
			t.Add(c.Row, "rate of 64", r.PerSecond)
			t.Add(c.Row, "p99 of 64", micros(r.P99))
			return peerOf(ctx, b, c.Row, title, r.Err)
		}})
	}
	if err := b.InterleaveFinely(ctx, "postgres, lock and unlock", bench.PartsOfCalls, one); err != nil {
		return err
	}
	if err := b.Interleave(ctx, "postgres, lock and unlock of 64", crowd); err != nil {
		return err
	}
	t.Chart(title, "rate", "rate of 64")
	b.Measured(ownTime, t.Ratio("p50", ours, pglock))
	b.Measured(ownRate, t.Ratio("rate of 64", ours, pglock))
	return nil
}
