package once

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// capacities are how many may hold a permit of the semaphores that are measured.
func capacities() []int { return []int{1, 4, 64} }

const (
	wanting = 64               // goroutines that want a permit
	held    = time.Millisecond // for how long they keep one
)

// permits measures a semaphore that nobody else wants anything of.
func permits(ctx context.Context, b *bench.B, s *site) error {
	t := b.Table("semaphores-uncontended", "Acquire and release a permit, uncontended", "One goroutine, one key.",
		latency("acquire and release")...)
	contenders := s.floor(b, t, twoPings, twoScripts)
	for _, capacity := range capacities() {
		row := fmt.Sprintf("Lockkeeper, capacity %d", capacity)
		sem, err := semaphore.New(s.store, fmt.Sprintf("alone-%d", capacity), capacity)
		if err != nil {
			return err
		}
		defer func() { _ = sem.Close() }()
		contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			return s.alone(ctx, t, row, b.Time(time.Second), func(ctx context.Context) error {
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

// crowds measures semaphores that many want a permit of.
func crowds(ctx context.Context, b *bench.B, s *site) error {
	t := b.Table("semaphores-contended", fmt.Sprintf("%d goroutines want a permit", wanting),
		"Each holder keeps its permit for 1 ms. A buffered channel whose slots are kept as long is the ceiling.",
		bench.Column{Name: "acquisitions", Unit: "per s"},
		bench.Column{Name: "wait p50", Unit: "ms"},
		bench.Column{Name: "wait p99", Unit: "ms"},
		bench.Column{Name: "most", Unit: "per goroutine"},
		bench.Column{Name: "fewest", Unit: "per goroutine"},
		bench.Column{Name: "commands", Unit: "per acquisition"},
	)
	var contenders []bench.Contender
	for _, capacity := range capacities() {
		sem, err := semaphore.New(s.store, fmt.Sprintf("crowd-%d", capacity), capacity)
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
			before, err := redisinfo.Read(ctx, s.client)
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
			after, err := redisinfo.Read(ctx, s.client)
			if err != nil {
				return err
			}
			add(t, ours, "commands", float64(after.Sub(before).Sent)/float64(n))
			return nil
		}
	}
	if err := b.Interleave(ctx, "semaphores, contended", contenders); err != nil {
		return err
	}
	t.Chart(fmt.Sprintf("%d goroutines want a permit", wanting), "acquisitions")
	return nil
}

// crowd has goroutines take permits until the time is over, and returns how many they got. That more
// than the capacity held one at once is an error.
func crowd(
	ctx context.Context, b *bench.B, t *bench.Table, row string, capacity int,
	acquire func(ctx context.Context) (release func(context.Context) error, err error),
) (int, error) {
	var (
		mu     sync.Mutex
		waits  []time.Duration
		inside atomic.Int64
		counts = make([]int, wanting)
	)
	r := bench.Load(ctx, wanting, b.Time(1500*time.Millisecond), func(ctx context.Context, worker, _ int) error {
		asked := time.Now()
		release, err := acquire(ctx)
		waited := time.Since(asked)
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
	add(t, row, "acquisitions", r.PerSecond)
	add(t, row, "wait p50", micros(percentile(waits, 0.50))/1e3)
	add(t, row, "wait p99", micros(percentile(waits, 0.99))/1e3)
	add(t, row, "most", float64(slices.Max(counts)))
	add(t, row, "fewest", float64(slices.Min(counts)))
	return int(r.Ops), nil
}
