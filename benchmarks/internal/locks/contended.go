package locks

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
)

// contended measures goroutines, in one process or several, that compete for one lock.
func contended(ctx context.Context, b *bench.B, s *floor.Site, addr string, processes, goroutines int) error {
	where := "one process"
	if processes > 1 {
		where = fmt.Sprintf("%d processes", processes)
	}
	title := fmt.Sprintf("One lock, %d goroutines in %s", goroutines, where)
	t := b.Table(fmt.Sprintf("locks-contended-%d-in-%d", goroutines, processes), title,
		"Each holder keeps the lock for 1 ms. A script counts as one command. Waits include those that had not ended. Most and fewest "+
			"are acquisitions of one goroutine: the rate alone misleads, since a goroutine that starves the others scores well.",
		slices.Concat(contest.Columns(), handOff())...)
	t.Reference(ceiling)
	crowd := contest.Crowd{
		Section: section, Observer: s.Client, Addr: addr, Processes: processes, Goroutines: goroutines, Capacity: 1,
		Held: held, For: b.Time(2 * time.Second),
	}
	remarks := make(bench.Remarks)
	contenders := []bench.Contender{{Row: ceiling, Run: func(ctx context.Context) error {
		var mu sync.Mutex
		crowd.Ceiling(ctx, contest.Local{Acquire: mu.Lock, Release: mu.Unlock}).Add(t, ceiling)
		return nil
	}}}
	for _, c := range Contenders() {
		contenders = append(contenders, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			r, err := crowd.Run(ctx, c)
			if err != nil {
				return peer(ctx, b, c.Row, title, err)
			}
			r.Add(t, c.Row)
			addHandOff(t, c.Row, r)
			if err := r.Err(); err != nil {
				remarks[c.Row] = err.Error()
			}
			return nil
		}})
	}
	if err := b.Interleave(ctx, fmt.Sprintf("locks, %d goroutines in %s", goroutines, where), contenders); err != nil {
		return err
	}
	t.Chart(title, "acquisitions")
	remarks.Note(b, title, contenders)
	if goroutines == 64 {
		judge(b, t, crowdTargets(where))
	}
	return nil
}

// handOff are the columns that addHandOff fills.
func handOff() []bench.Column {
	return []bench.Column{
		{Name: "hand-off p50", Unit: "µs", Better: bench.Less},
		{Name: "hand-off p99", Unit: "µs", Better: bench.Less},
		{Name: "handed on", Unit: "% of acquisitions", Better: bench.More},
	}
}

func addHandOff(t *bench.Table, row string, r contest.Result) {
	t.Add(row, "hand-off p50", r.HandOffP50)
	t.Add(row, "hand-off p99", r.HandOffP99)
	t.Add(row, "handed on", 100*r.HandOffShare)
}

// judge gives the targets of a crowd their values.
func judge(b *bench.B, t *bench.Table, c crowdTargets) {
	evenness := t.Value(ours, "most") / t.Value(ours, "fewest")
	if t.Value(ours, "fewest") < 10 { // a difference of one exceeds the bound
		evenness = math.NaN()
	}
	b.Measured(c.share(""), 100*t.Ratio("acquisitions", ours, ceiling))
	b.Measured(c.evenness(), evenness)
	b.Measured(c.commands(""), t.Value(ours, "commands"))
	if c == severalProcesses {
		b.Measured(c.share(orderly), 100*t.Ratio("acquisitions", fair, ceiling))
		b.Measured(c.commands(orderly), t.Value(fair, "commands"))
	}
}
