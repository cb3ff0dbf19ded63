package postgres

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

const (
	// processes is how many share a contended lock.
	processes = 4
	// holds is how long its holders keep it.
	holds = time.Millisecond
)

// contended measures goroutines of several processes that compete for one lock.
func contended(ctx context.Context, b *bench.B, y *yard) error {
	const title = "PostgreSQL: one lock, 64 goroutines in 4 processes"
	t := b.Table("postgres-contended", title,
		"Each holder keeps the lock for 1 ms. Most and fewest are acquisitions of one goroutine.",
		slices.Concat(contest.Shares(), handOff(), []bench.Column{{Name: "failures", Unit: "calls", Better: bench.Less}})...)
	t.Reference(ceiling)
	crowd := contest.Crowd{
		Section: section, Addr: y.dsn, Processes: processes, Goroutines: many, Capacity: 1, Held: holds, For: b.Time(3 * time.Second),
	}
	remarks := make(bench.Remarks)
	all := []bench.Contender{{Row: ceiling, Run: func(ctx context.Context) error {
		var mu sync.Mutex
		crowd.Ceiling(ctx, contest.Local{Acquire: mu.Lock, Release: mu.Unlock}).Add(t, ceiling)
		return nil
	}}}
	for _, c := range contenders() {
		all = append(all, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			r, err := crowd.Run(ctx, c)
			if err != nil {
				return peerOf(ctx, b, c.Row, title, err)
			}
			r.Add(t, c.Row)
			t.Add(c.Row, "hand-off p50", r.HandOffP50)
			t.Add(c.Row, "hand-off p99", r.HandOffP99)
			t.Add(c.Row, "failures", float64(r.Failures))
			if err := r.Err(); err != nil {
				remarks[c.Row] = err.Error()
			}
			return nil
		}})
	}
	if err := b.Interleave(ctx, "postgres, one lock", all); err != nil {
		return err
	}
	t.Chart(title, "acquisitions")
	remarks.Note(b, title, all)
	evenness := t.Value(ours, "most") / t.Value(ours, "fewest")
	if t.Value(ours, "fewest") < 10 { // a difference of one exceeds the bound
		evenness = math.NaN()
	}
	b.Measured(crowdShare, 100*t.Ratio("acquisitions", ours, ceiling))
	b.Measured(crowdEvenness, evenness)
	return nil
}

func handOff() []bench.Column {
	return []bench.Column{
		{Name: "hand-off p50", Unit: "µs", Better: bench.Less},
		{Name: "hand-off p99", Unit: "µs", Better: bench.Less},
	}
}

// remote measures the hand-over of a lock between two stores, with one goroutine each.
func remote(ctx context.Context, b *bench.B, y *yard) error {
	const title = "PostgreSQL: a lock goes from one process to another"
	t := b.Table("postgres-remote", title,
		"Two stores, or pools, share a lock and keep it for 1 ms each. The floor is a commit, a NOTIFY in a transaction of its own to its receipt, "+
			"and a commit, one after the other and after 1 ms of rest.",
		handOff()...)
	t.Reference(notified)
	floor, stop, err := y.notifications(ctx)
	if err != nil {
		return err
	}
	defer stop()
	all := []bench.Contender{{Row: notified, Run: func(ctx context.Context) error {
		var took []time.Duration
		for end := time.Now().Add(b.Time(2 * time.Second)); time.Now().Before(end); {
			contest.Rest(holds)
			start := time.Now()
			if err := floor(ctx); err != nil {
				return err
			}
			took = append(took, time.Since(start))
		}
		t.Add(notified, "hand-off p50", bench.Percentile(took, 0.50)/1e3)
		t.Add(notified, "hand-off p99", bench.Percentile(took, 0.99)/1e3)
		return nil
	}}}
	for _, c := range contenders() {
		all = append(all, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			clients := make([]contest.Client, 2)
			for i := range clients {
				var err error
				if clients[i], err = c.Open(y.dsn); err != nil {
					return err
				}
				defer clients[i].Close()
				if err := contest.Warm(ctx, clients[i]); err != nil {
					return err
				}
			}
			contest.Run(ctx, clients, 1, 0, holds, 300*time.Millisecond) // listens
			d := b.Time(2 * time.Second)
			r := contest.Judge([]contest.Record{contest.Run(ctx, clients, 1, 0, holds, d)}, len(clients), 1, d)
			t.Add(c.Row, "hand-off p50", r.HandOffP50)
			t.Add(c.Row, "hand-off p99", r.HandOffP99)
			return peerOf(ctx, b, c.Row, title, r.Err())
		}})
	}
	if err := b.InterleaveFinely(ctx, "postgres, from one process to another", bench.PartsOfWaits, all); err != nil {
		return err
	}
	t.Chart(title, "hand-off p50", "hand-off p99")
	b.Measured(handOver, t.Ratio("hand-off p50", ours, notified))
	return nil
}

// notifications returns a call that commits, notifies another connection, and commits again when that
// has been told.
func (y *yard) notifications(ctx context.Context) (call func(context.Context) error, stop func(), err error) {
	listening, err := pgx.Connect(ctx, y.dsn)
	if err != nil {
		return nil, nil, err
	}
	stop = func() { _ = listening.Close(context.WithoutCancel(ctx)) }
	if _, err := listening.Exec(ctx, "LISTEN floor"); err != nil {
		stop()
		return nil, nil, err
	}
	commit := func(ctx context.Context) error {
		_, err := y.peer.Exec(ctx, "UPDATE orders SET total = total + 1 WHERE id = 1")
		return err
	}
	replies := make(chan error, 1)
	replies <- nil
	return func(ctx context.Context) error {
		if err := <-replies; err != nil { // of the call before
			return err
		}
		if err := commit(ctx); err != nil {
			replies <- nil
			return err
		}
		go func() {
			_, err := y.peer.Exec(ctx, "SELECT pg_notify('floor', 'lease 0123456789abcdef')")
			replies <- err
		}()
		if _, err := listening.WaitForNotification(ctx); err != nil {
			return err
		}
		return commit(ctx)
	}, stop, nil
}

// dead measures how long dead waiters delay a live one.
func dead(ctx context.Context, b *bench.B, y *yard) error {
	// The server ends 300 connections at once, and may not reply for seconds where that is slow.
	return contest.Dead(ctx, b, section, y.dsn, queued(pgstore.WithTimeout(10*time.Second)))
}

// queued is Lockkeeper, under a name for a target that Redis has as well.
func queued(options ...pgstore.Option) contest.Contender {
	return contest.Contender{Row: "Lockkeeper on PostgreSQL", Open: lockkeeper(options...)}
}
