// Package locks compares distributed locks: alone, contended in one process and in four, handed
// from one process to another, and when processes die.
package locks

import (
	"context"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

// held is how long a holder keeps a contended lock.
const held = time.Millisecond

const section = "locks"

// The rows that targets name.
const (
	ours    = "Lockkeeper"
	fair    = "Lockkeeper, WithFair"
	sparse  = "redislock, polling every 100 ms"
	polling = "redislock, polling every 1 ms"
	ceiling = "sync.Mutex (the ceiling)"
)

// Sections are the comparison of locks.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  section,
		Title: "Locks",
		About: "Uncontended, one goroutine locks and unlocks, which takes at least two round trips. Contended, 16 and 64 goroutines in one " +
			"process and in four share a lock that each holder keeps for 1 ms; a sync.Mutex is the ceiling. A hand-off is the time from " +
			"before the holder's unlock to after the next goroutine's lock.",
		Full:    235 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

// Jobs are those of the section's worker processes.
func Jobs() []worker.Job { return contest.Jobs(section, Contenders) }

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	addr := server.Addr()
	return floor.With(addr, 1, func(s []*floor.Site) error {
		if err := uncontended(ctx, b, s[0], addr); err != nil {
			return err
		}
		for _, processes := range []int{1, 4} {
			for _, goroutines := range []int{16, 64} {
				if err := contended(ctx, b, s[0], addr, processes, goroutines); err != nil {
					return err
				}
			}
		}
		if err := remote(ctx, b, s[0], addr); err != nil {
			return err
		}
		if err := contest.Dead(ctx, b, section, addr, contest.Contender{Row: fair, Open: Lockkeeper(lock.WithFair())}); err != nil {
			return err
		}
		if err := released(ctx, b, s[0], server); err != nil {
			return err
		}
		b.Note(Options)
		return nil
	})
}

// peer returns the error of a round, and notes instead that of a peer, which may block forever.
func peer(ctx context.Context, b *bench.B, row, title string, err error) error {
	if err == nil || ctx.Err() != nil || strings.HasPrefix(row, ours) {
		return err
	}
	b.Note(row + ", " + title + ": a round has failed: " + err.Error())
	return nil
}
