package coordination

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
)

const (
	// processes is how many share a contended lock.
	processes = 4
	// goroutines is how many compete for it, in all of them.
	goroutines = 16
	// holds is how long its holders keep it.
	holds = time.Millisecond
)

// own measures uncontended locks.
func own(ctx context.Context, b *bench.B, y *yard) error {
	const title = "etcd and ZooKeeper: lock and unlock of an own key"
	t := b.Table("coordination-own", title, "One goroutine, one key.",
		bench.Column{Name: "p50", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "p99", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "rate", Unit: "per s", Better: bench.More},
		bench.Column{Name: "allocations", Unit: "per lock and unlock", Better: bench.Less},
	)
	var all []bench.Contender
	for _, c := range has(y, contenders()) {
		client, err := c.Open(y.addr(c.server)) // once: what a client does when it begins is no part of a lock's time
		if err != nil {
			return err
		}
		defer client.Close()
		if err := contest.Warm(ctx, client); err != nil {
			return fmt.Errorf("%s: %w", c.Row, err)
		}
		all = append(all, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			r := bench.Load(ctx, 1, b.Time(2*time.Second), func(ctx context.Context, _, _ int) error {
				lock, err := client.Lock(ctx, "own")
				if err != nil {
					return err
				}
				return lock.Unlock(ctx)
			})
			t.Add(c.Row, "p50", micros(r.P50))
			t.Add(c.Row, "p99", micros(r.P99))
			t.Add(c.Row, "rate", r.PerSecond)
			t.Add(c.Row, "allocations", r.AllocsPerOp)
			return peerOf(ctx, b, c.Row, title, r.Err)
		}})
	}
	if err := b.InterleaveFinely(ctx, "etcd and ZooKeeper, lock and unlock", bench.PartsOfCalls, all); err != nil {
		return err
	}
	t.Chart(title, "p50", "p99")
	for _, p := range has(y, pairs()) {
		b.Measured(p.own, t.Ratio("p50", p.ours, p.peer))
	}
	return nil
}

// contended measures goroutines of several processes that compete for one lock.
func contended(ctx context.Context, b *bench.B, y *yard) error {
	title := fmt.Sprintf("etcd and ZooKeeper: one lock, %d goroutines in %d processes", goroutines, processes)
	t := b.Table("coordination-contended", title, "Each holder keeps the lock for 1 ms. Most and fewest are acquisitions of one goroutine.",
		slices.Concat(contest.Shares(), handOffs(), []bench.Column{{Name: "failures", Unit: "calls", Better: bench.Less}})...)
	t.Reference(ceiling)
	crowd := contest.Crowd{
		Section: section, Processes: processes, Goroutines: goroutines, Capacity: 1, Held: holds, For: b.Time(3 * time.Second),
	}
	remarks := make(bench.Remarks)
	all := []bench.Contender{{Row: ceiling, Run: func(ctx context.Context) error {
		var mu sync.Mutex
		crowd.Ceiling(ctx, contest.Local{Acquire: mu.Lock, Release: mu.Unlock}).Add(t, ceiling)
		return nil
	}}}
	for _, c := range has(y, contenders()) {
		all = append(all, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			crowd := crowd
			crowd.Addr = y.addr(c.server)
			r, err := crowd.Run(ctx, c.Contender)
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
	if err := b.Interleave(ctx, "etcd and ZooKeeper, one lock", all); err != nil {
		return err
	}
	t.Chart(title, "acquisitions")
	remarks.Note(b, title, all)
	for _, p := range has(y, pairs()) {
		b.Measured(p.crowd, t.Ratio("acquisitions", p.ours, p.peer))
	}
	return nil
}

func handOffs() []bench.Column {
	return []bench.Column{
		{Name: "hand-off p50", Unit: "µs", Better: bench.Less},
		{Name: "hand-off p99", Unit: "µs", Better: bench.Less},
	}
}

// handOver measures the hand-over of a lock between two clients, with one goroutine each.
func handOver(ctx context.Context, b *bench.B, y *yard) error {
	const title = "etcd and ZooKeeper: a lock goes from one process to another"
	t := b.Table("coordination-remote", title,
		"Two clients, as of two processes, share a lock and keep it for 1 ms each: the time from before an unlock to the other's lock. The floor is "+
			"a delete by one client to the event of another one's watch, after 1 ms of rest.",
		handOffs()...)
	t.Reference(etcdFloor, zkFloor)
	var all []bench.Contender
	for _, f := range has(y, floors()) {
		call, stop, err := f.open(ctx, y.addr(f.server))
		if err != nil {
			return err
		}
		defer stop()
		all = append(all, bench.Contender{Row: f.row, Run: func(ctx context.Context) error {
			var took []time.Duration
			for end := time.Now().Add(b.Time(2 * time.Second)); time.Now().Before(end); {
				d, err := call(ctx)
				if err != nil {
					return err
				}
				took = append(took, d)
			}
			t.Add(f.row, "hand-off p50", bench.Percentile(took, 0.50)/1e3)
			t.Add(f.row, "hand-off p99", bench.Percentile(took, 0.99)/1e3)
			return nil
		}})
	}
	for _, c := range has(y, contenders()) {
		clients := make([]contest.Client, 2) // opened once: see own
		for i := range clients {
			var err error
			if clients[i], err = c.Open(y.addr(c.server)); err != nil {
				return err
			}
			defer clients[i].Close()
			if err := contest.Warm(ctx, clients[i]); err != nil {
				return err
			}
		}
		all = append(all, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			d := b.Time(2 * time.Second)
			r := contest.Judge([]contest.Record{contest.Run(ctx, clients, 1, 0, holds, d)}, len(clients), 1, d)
			t.Add(c.Row, "hand-off p50", r.HandOffP50)
			t.Add(c.Row, "hand-off p99", r.HandOffP99)
			return peerOf(ctx, b, c.Row, title, r.Err())
		}})
	}
	if err := b.InterleaveFinely(ctx, "etcd and ZooKeeper, from one process to another", bench.PartsOfWaits, all); err != nil {
		return err
	}
	t.Chart(title, "hand-off p50", "hand-off p99")
	for _, p := range has(y, pairs()) {
		if p.handOverMost > 0 {
			b.Measured(p.handOver, t.Ratio("hand-off p50", p.ours, p.floor))
		}
	}
	return nil
}
