// Package locks compares distributed locks: alone, contended in one process and in four, and
// handed from one process to another.
package locks

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

// held is how long a holder keeps a contended lock.
const held = time.Millisecond

// The reference rows.
const (
	twoPings   = "two PINGs (the floor)"
	twoScripts = "two scripts, of a GET and a SET each"
	ceiling    = "sync.Mutex (the ceiling)"
)

// Sections are the comparison of locks.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "locks",
		Title: "Locks",
		About: "Uncontended, one goroutine locks and unlocks, which takes at least two round trips. Contended, 16 and 64 goroutines in one " +
			"process and in four share a lock that each holder keeps for 1 ms; a sync.Mutex is the ceiling. A hand-off is the time from " +
			"before the holder's unlock to after the next goroutine's lock.",
		Full: 220 * time.Second,
		Run:  run,
	}}
}

// Jobs are those of the section's worker processes.
func Jobs() []worker.Job {
	return []worker.Job{{Name: contestJob, Run: runContest}}
}

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	observer := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = observer.Close() }()
	if err := uncontended(ctx, b, server.Addr()); err != nil {
		return err
	}
	for _, processes := range []int{1, 4} {
		for _, goroutines := range []int{16, 64} {
			c := crowd{observer: observer, addr: server.Addr(), processes: processes, goroutines: goroutines}
			if err := c.measure(ctx, b); err != nil {
				return err
			}
		}
	}
	if err := remote(ctx, b, server.Addr()); err != nil {
		return err
	}
	b.Note(Options)
	return nil
}

// ratio returns the median of a column in one row divided by that in another.
func ratio(t *bench.Table, column, row, to string) (float64, bool) {
	v, ok := t.Median(row, column)
	base, has := t.Median(to, column)
	return v / base, ok && has && base > 0
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// warm connects, loads scripts and subscribes.
func warm(ctx context.Context, client Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a library may block forever
	defer cancel()
	for range 3 {
		lock, err := lockPatiently(ctx, client)
		if err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
		if err := lock.Unlock(ctx); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
	}
	return nil
}

// lockPatiently retries failures of a machine that has just started several processes.
func lockPatiently(ctx context.Context, client Client) (lock Held, err error) {
	for range 20 {
		if lock, err = client.Lock(ctx, "warm"); err == nil || ctx.Err() != nil {
			break
		}
	}
	return lock, err
}
