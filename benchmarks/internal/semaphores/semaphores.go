// Package semaphores measures semaphores on Redis beside the fewest round trips that they can take, and a channel.
package semaphores

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

const section = "semaphores"

// Sections are the comparison of semaphores.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  section,
		Title: "Semaphores",
		About: "There is no Go library of leased permits on Redis to compare with, so semaphores are compared with the floor: a permit takes " +
			"at least two round trips. Round trips are commands of the client, as the server counts them.",
		Full:    80 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

// The targets of tiers.
var (
	lowTarget  = fmt.Sprintf("two tiers, a reserve of %d: permits of the low one at once", reserve)
	highTarget = fmt.Sprintf("two tiers, a reserve of %d: refusals of the high one", reserve)
)

func channelTarget(processes string) string {
	return fmt.Sprintf("semaphore of %d, %d goroutines%s: acquisitions against a channel's", usual, waiters, processes)
}

func targets() []bench.Target {
	return append([]bench.Target{
		{What: channelTarget(""), Bound: 75, Better: bench.More, Unit: "%"},
		{What: channelTarget(apart), Bound: 90, Better: bench.More, Unit: "%"},
		{What: lowTarget, Bound: shared - reserve, Better: bench.Less},
		{What: highTarget, Better: bench.Less, Unit: "%"},
	}, contest.DeadTargets(contender(1).Row, 2)...)
}

// Jobs are those of the section's worker processes.
func Jobs() []worker.Job { return contest.Jobs(section, contenders) }

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	return floor.With(server.Addr(), 1, func(s []*floor.Site) error {
		if err := permits(ctx, b, s[0]); err != nil {
			return err
		}
		if err := crowds(ctx, b, s[0], server.Addr()); err != nil {
			return err
		}
		if err := tiers(ctx, b, s[0]); err != nil {
			return err
		}
		return contest.Dead(ctx, b, section, server.Addr(), contender(1))
	})
}

// capacities are those of the measured semaphores.
func capacities() []int { return []int{1, 4, 64} }

// usual is the capacity that targets name, and apart marks the row of its four processes.
const (
	usual = 4
	apart = ", 4 processes"
)

func ceiling(capacity int) string {
	return fmt.Sprintf("capacity %d, a channel (the ceiling)", capacity)
}

const (
	waiters = 64               // goroutines that want a permit
	held    = time.Millisecond // how long they keep one
)

func contenders() []contest.Contender {
	var all []contest.Contender
	for _, capacity := range capacities() {
		all = append(all, contender(capacity))
	}
	return all
}

func contender(capacity int) contest.Contender {
	return contest.Contender{Row: fmt.Sprintf("capacity %d, Lockkeeper", capacity), Open: func(addr string) (contest.Client, error) {
		site, err := floor.Open(addr)
		if err != nil {
			return nil, err
		}
		sem, err := semaphore.New(site.Store, fmt.Sprintf("crowd-%d", capacity), capacity)
		return &client{site, sem}, err
	}}
}

type client struct {
	site *floor.Site
	sem  *semaphore.Semaphore
}

func (c *client) Lock(ctx context.Context, key string) (contest.Held, error) {
	permit, err := c.sem.Acquire(ctx, key)
	if err != nil {
		return nil, err
	}
	return permitHeld{permit}, nil
}

// Waiting returns how many wait for a key.
func (c *client) Waiting(ctx context.Context, key string) (int, error) {
	state, err := c.sem.Inspect(ctx, key)
	return state.Waiting, err
}

func (c *client) Close() {
	_ = c.sem.Close()
	c.site.Close()
}

type permitHeld struct{ permit *semaphore.Permit }

func (h permitHeld) Unlock(ctx context.Context) error { return h.permit.Release(ctx) }

// permits measures an uncontended semaphore.
func permits(ctx context.Context, b *bench.B, s *floor.Site) error {
	const title = "Acquire and release a permit, uncontended"
	t := b.Table("semaphores-uncontended", title, "One goroutine, one key. "+
		"A permit takes a script to acquire and one to release; two scripts that read and write a key are the floor of such permits.",
		floor.Columns("acquire and release")...)
	contenders := s.Rows(b, t, floor.TwoPings, floor.TwoScripts, floor.WithArguments)
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
	if err := b.InterleaveFinely(ctx, "semaphores, uncontended", bench.PartsOfCalls, contenders); err != nil {
		return err
	}
	t.Chart(title, "p50", "p99")
	return nil
}

// crowds measures contended semaphores, in one process and in four.
func crowds(ctx context.Context, b *bench.B, s *floor.Site, addr string) error {
	title := fmt.Sprintf("%d goroutines want a permit", waiters)
	columns := contest.Columns()
	for i := range columns { // rows of different capacities do not compete
		columns[i].Better = bench.Neither
	}
	t := b.Table("semaphores-contended", title,
		"Each holder keeps its permit for 1 ms. The ceiling is a buffered channel whose slots are kept as long.", columns...)
	var all []bench.Contender
	for _, capacity := range capacities() {
		crowd := contest.Crowd{
			Section: section, Observer: s.Client, Addr: addr, Processes: 1, Goroutines: waiters, Capacity: capacity,
			Held: held, For: b.Time(1500 * time.Millisecond),
		}
		t.Reference(ceiling(capacity))
		all = append(all, bench.Contender{Row: ceiling(capacity), Run: func(ctx context.Context) error {
			slots := make(chan struct{}, capacity)
			crowd.Ceiling(ctx, contest.Local{Acquire: func() { slots <- struct{}{} }, Release: func() { <-slots }}).Add(t, ceiling(capacity))
			return nil
		}})
		c := contender(capacity)
		compete := func(row string, processes int) {
			crowd := crowd
			crowd.Processes = processes
			all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
				r, err := crowd.Run(ctx, c)
				if err != nil {
					return err
				}
				r.Add(t, row)
				return r.Err()
			}})
		}
		compete(c.Row, 1)
		if capacity == usual {
			compete(c.Row+apart, 4)
		}
	}
	if err := b.Interleave(ctx, "semaphores, contended", all); err != nil {
		return err
	}
	t.Chart(title, "acquisitions")
	for _, processes := range []string{"", apart} {
		b.Measured(channelTarget(processes), 100*t.Ratio("acquisitions", contender(usual).Row+processes, ceiling(usual)))
	}
	return nil
}
