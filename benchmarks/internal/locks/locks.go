// Package locks compares distributed locks: alone, contended in one process and in four, and
// handed from one process to another.
package locks

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

// held is for how long a holder keeps a contended lock.
const held = time.Millisecond

// The rows that the others are measured against.
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
		About: "Uncontended, one goroutine locks and unlocks a lock that nobody else wants, which cannot take less than two " +
			"round trips. Contended, 16 and 64 goroutines, in one process and shared among four, want the same lock, and " +
			"each holder keeps it for a millisecond; a sync.Mutex that is kept as long shows how many acquisitions a second " +
			"are possible. A hand-off is the time from before the holder's unlock to after the next goroutine's lock.",
		Full: 220 * time.Second,
		Run:  run,
	}}
}

// Jobs are what the section's worker processes do.
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

// add adds a value, unless there was nothing to measure.
func add(t *bench.Table, row, column string, value float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		t.Add(row, column, value)
	}
}

// ratio is the median of a column in one row against that in another.
func ratio(t *bench.Table, column, row, to string) (float64, bool) {
	v, ok := t.Median(row, column)
	base, has := t.Median(to, column)
	return v / base, ok && has && base > 0
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// warm makes connections, loads scripts and subscribes, as a process has done before it is busy.
func warm(ctx context.Context, client Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a library may wait for ever for what does not come
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

// lockPatiently forgives what a machine that has just started several processes may cause.
func lockPatiently(ctx context.Context, client Client) (lock Held, err error) {
	for range 20 {
		if lock, err = client.Lock(ctx, "warm"); err == nil || ctx.Err() != nil {
			break
		}
	}
	return lock, err
}
