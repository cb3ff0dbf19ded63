// Package semaphores measures semaphores on Redis beside the fewest round trips that they can take, and a channel.
package semaphores

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// Sections are the comparison of semaphores.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "semaphores",
		Title: "Semaphores",
		About: "There is no Go library of leased permits on Redis to compare with, so semaphores are compared with the floor: a permit takes " +
			"at least two round trips. Round trips are commands of the client, as the server counts them.",
		Full: 40 * time.Second,
		Run:  run,
	}}
}

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	return floor.With(server.Addr(), 1, func(s []*floor.Site) error {
		if err := permits(ctx, b, s[0]); err != nil {
			return err
		}
		return crowds(ctx, b, s[0])
	})
}

// capacities are those of the measured semaphores.
func capacities() []int { return []int{1, 4, 64} }

const (
	waiters = 64               // goroutines that want a permit
	held    = time.Millisecond // how long they keep one
)

// permits measures an uncontended semaphore.
func permits(ctx context.Context, b *bench.B, s *floor.Site) error {
	t := b.Table("semaphores-uncontended", "Acquire and release a permit, uncontended", "One goroutine, one key.",
		floor.Columns("acquire and release")...)
	contenders := s.Rows(b, t, floor.TwoPings, floor.TwoScripts)
	for _, capacity := range capacities() {
		row := fmt.Sprintf("Lockkeeper, capacity %d", capacity)
		sem, err := semaphore.New(s.Store, fmt.Sprintf("alone-%d", capacity), capacity)
		if err != nil {
			return err
		}
		defer func() { _ = sem.Close() }()
		contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			return s.Alone(ctx, t, row, b.Time(time.Second), func(ctx context.Context) error {
				permit, err := sem.Acquire(ctx, "key")
				if err != nil {
					return err
				}
				return permit.Release(ctx)
			})
		}})
	}
	if err := b.Interleave(ctx, "semaphores, uncontended", contenders); err != nil {
		return err
	}
	t.Chart("Acquire and release a permit, uncontended", "p50", "p99")
	return nil
}

// crowds measures contended semaphores.
func crowds(ctx context.Context, b *bench.B, s *floor.Site) error {
	t := b.Table("semaphores-contended", fmt.Sprintf("%d goroutines want a permit", waiters),
		"Each holder keeps its permit for 1 ms. The ceiling is a buffered channel whose slots are kept as long.",
		bench.Column{Name: "acquisitions", Unit: "per s"},
		bench.Column{Name: "wait p50", Unit: "ms"},
		bench.Column{Name: "wait p99", Unit: "ms"},
		bench.Column{Name: "most", Unit: "per goroutine"},
		bench.Column{Name: "fewest", Unit: "per goroutine"},
		bench.Column{Name: "commands", Unit: "per acquisition"},
	)
	var contenders []bench.Contender
	for _, capacity := range capacities() {
		sem, err := semaphore.New(s.Store, fmt.Sprintf("crowd-%d", capacity), capacity)
		if err != nil {
			return err
		}
		defer func() { _ = sem.Close() }()
		t.Reference(fmt.Sprintf("capacity %d, a channel (the ceiling)", capacity))
		slots := make(chan struct{}, capacity)
		contenders = append(contenders, bench.Contender{
			Row: fmt.Sprintf("capacity %d, a channel (the ceiling)", capacity),
		}, bench.Contender{
			Row: fmt.Sprintf("capacity %d, Lockkeeper", capacity),
		})
		last := contenders[len(contenders)-2:]
		ceiling, ours := last[0].Row, last[1].Row
		last[0].Run = func(ctx context.Context) error {
			_, err := crowd(ctx, b, t, ceiling, capacity, func(context.Context) (func(context.Context) error, error) {
				slots <- struct{}{}
				return func(context.Context) error {
					<-slots
					return nil
				}, nil
			})
			return err
		}
		last[1].Run = func(ctx context.Context) error {
			before, err := redisinfo.Read(ctx, s.Client)
			if err != nil {
				return err
			}
			n, err := crowd(ctx, b, t, ours, capacity, func(ctx context.Context) (func(context.Context) error, error) {
				permit, err := sem.Acquire(ctx, "key")
				if err != nil {
					return nil, err
				}
				return permit.Release, nil
			})
			if err != nil {
				return err
			}
			after, err := redisinfo.Read(ctx, s.Client)
			if err != nil {
				return err
			}
			t.Add(ours, "commands", float64(after.Sub(before).Sent)/float64(n))
			return nil
		}
	}
	if err := b.Interleave(ctx, "semaphores, contended", contenders); err != nil {
		return err
	}
	t.Chart(fmt.Sprintf("%d goroutines want a permit", waiters), "acquisitions")
	return nil
}

// crowd acquires permits on many goroutines until the time is over, and returns their number. It returns an error if more
// than the capacity are held at once.
func crowd(
	ctx context.Context, b *bench.B, t *bench.Table, row string, capacity int,
	acquire func(ctx context.Context) (release func(context.Context) error, err error),
) (int, error) {
	var (
		mu     sync.Mutex
		waits  []time.Duration
		inside atomic.Int64
		counts = make([]int, waiters)
	)
	r := bench.Load(ctx, waiters, b.Time(1500*time.Millisecond), func(ctx context.Context, worker, _ int) error {
		sent := time.Now()
		release, err := acquire(ctx)
		waited := time.Since(sent)
		if err == nil {
			if n := inside.Add(1); n > int64(capacity) {
				err = fmt.Errorf("%d held a permit of %d", n, capacity)
			}
			<-time.After(held)
			inside.Add(-1)
			if gone := release(ctx); err == nil {
				err = gone
			}
		}
		counts[worker]++
		mu.Lock()
		defer mu.Unlock()
		waits = append(waits, waited)
		return err
	})
	if r.Err != nil {
		return 0, r.Err
	}
	t.Add(row, "acquisitions", r.PerSecond)
	t.Add(row, "wait p50", floor.Micros(floor.Percentile(waits, 0.50))/1e3)
	t.Add(row, "wait p99", floor.Micros(floor.Percentile(waits, 0.99))/1e3)
	t.Add(row, "most", float64(slices.Max(counts)))
	t.Add(row, "fewest", float64(slices.Min(counts)))
	return int(r.Ops), nil
}
