package contest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
)

// Result summarises the holds of a contest.
type Result struct {
	Acquisitions     int
	PerSecond        float64
	HandOffP50       float64 // microseconds from a release to the next grant; NaN if there was none
	HandOffP99       float64
	HandOffShare     float64 // share of grants to another goroutine than the last holder
	Most, Fewest     int     // acquisitions of one goroutine
	WaitP50, WaitP99 float64 // milliseconds
	AtOnce           int     // the most that held at the same time
	Failures         int
	Failure          string
	Overlaps         int               // grants beyond the capacity: violations of exclusion
	Load             redisinfo.Reading // on Redis, during the contest
}

// Judge returns the result of a contest of so many workers, of which as many as the capacity may
// hold at once.
func Judge(records []Record, workers, capacity int, d time.Duration) Result {
	var (
		holds    []hold
		releases []int64
		waits    []int64
		r        Result
	)
	for _, one := range records {
		holds, waits = append(holds, one.Holds...), append(waits, one.Waits...)
		r.Failures += one.Failures
		r.Failure = cmp.Or(r.Failure, one.Error)
	}
	slices.SortFunc(holds, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
	for _, h := range holds {
		releases = append(releases, h.Releasing)
	}
	slices.Sort(releases)
	counts := make([]int, workers)
	var handOffs []int64
	released := 0
	for i, h := range holds {
		counts[h.Worker]++
		for releases[released] <= h.Granted {
			released++
		}
		inside := i + 1 - released
		r.AtOnce = max(r.AtOnce, inside)
		if inside > capacity {
			r.Overlaps++
		}
		if i > 0 && h.Worker != holds[i-1].Worker {
			handOffs = append(handOffs, h.Granted-holds[i-1].Releasing)
		}
	}
	r.Acquisitions = len(holds)
	r.PerSecond = float64(len(holds)) / d.Seconds()
	r.HandOffP50 = bench.Percentile(handOffs, 0.50) / 1e3
	r.HandOffP99 = bench.Percentile(handOffs, 0.99) / 1e3
	r.HandOffShare = float64(len(handOffs)) / float64(max(len(holds)-1, 1))
	r.Most, r.Fewest = slices.Max(counts), slices.Min(counts)
	r.WaitP50 = bench.Percentile(waits, 0.50) / 1e6
	r.WaitP99 = bench.Percentile(waits, 0.99) / 1e6
	return r
}

// Err is what went wrong, nil if nothing did.
func (r Result) Err() error {
	var all []error
	if r.Failures > 0 {
		all = append(all, fmt.Errorf("%d calls failed (%s)", r.Failures, r.Failure))
	}
	if r.Overlaps > 0 {
		all = append(all, fmt.Errorf("more held at once than may, %d times in a round", r.Overlaps))
	}
	return errors.Join(all...)
}

// Columns are those that [Result.Add] fills.
func Columns() []bench.Column {
	return append(Shares(),
		bench.Column{Name: "commands", Unit: "per acquisition", Better: bench.Less},
		bench.Column{Name: "Redis CPU", Unit: "µs per acquisition", Better: bench.Less},
		bench.Column{Name: "failures", Unit: "calls", Better: bench.Less},
	)
}

// Shares are those that it fills without a load on Redis.
func Shares() []bench.Column {
	return []bench.Column{
		{Name: "acquisitions", Unit: "per s", Better: bench.More},
		{Name: "wait p50", Unit: "ms"}, // short where many starve
		{Name: "wait p99", Unit: "ms", Better: bench.Less},
		{Name: "most", Unit: "per goroutine", Better: bench.Less},
		{Name: "fewest", Unit: "per goroutine", Better: bench.More},
	}
}

// Add adds the result to a row.
func (r Result) Add(t *bench.Table, row string) {
	t.Add(row, "acquisitions", r.PerSecond)
	t.Add(row, "wait p50", r.WaitP50)
	t.Add(row, "wait p99", r.WaitP99)
	t.Add(row, "most", float64(r.Most))
	t.Add(row, "fewest", float64(r.Fewest))
	if r.Load != (redisinfo.Reading{}) { // with Redis
		t.Add(row, "commands", float64(r.Load.Sent)/float64(r.Acquisitions))
		t.Add(row, "Redis CPU", float64(r.Load.CPU.Microseconds())/float64(r.Acquisitions))
		t.Add(row, "failures", float64(r.Failures))
	}
}
