package locks

import (
	"cmp"
	"context"
	"math"
	"slices"
	"sync"
	"time"
)

// hold is one hold of the lock by a goroutine. Its times are those of the machine's clock in
// nanoseconds, which the processes share.
type hold struct {
	Worker    int
	Granted   int64
	Releasing int64 // before the call that releases it
}

// record is the part of one process in a contest.
type record struct {
	Holds []hold
	// Waits are the nanoseconds from request to grant; for requests that were still waiting, to the
	// end of the contest.
	Waits    []int64
	Failures int // calls that failed before the end
	Error    string
}

// contest runs n goroutines of each client, which share one lock until the time is over. Its
// workers are numbered from first.
func contest(ctx context.Context, clients []Client, n, first int, held, d time.Duration) record {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var (
		mu      sync.Mutex
		all     record
		running sync.WaitGroup
	)
	for i, client := range clients {
		for j := range n {
			running.Go(func() {
				mine := compete(ctx, client, first+i*n+j, held)
				mu.Lock()
				defer mu.Unlock()
				all.Holds = append(all.Holds, mine.Holds...)
				all.Waits = append(all.Waits, mine.Waits...)
				all.Failures += mine.Failures
				all.Error = cmp.Or(all.Error, mine.Error)
			})
		}
	}
	running.Wait()
	return all
}

func compete(ctx context.Context, client Client, worker int, held time.Duration) record {
	var r record
	for ctx.Err() == nil {
		sent := time.Now()
		lock, err := client.Lock(ctx, "contested")
		granted := time.Now()
		if ctx.Err() != nil {
			r.Waits = append(r.Waits, int64(granted.Sub(sent)))
			if err == nil {
				_ = lock.Unlock(context.WithoutCancel(ctx))
			}
			return r
		}
		if err != nil {
			r.Failures++
			r.Error = err.Error()
			continue
		}
		rest(held)
		releasing := time.Now()
		if err := lock.Unlock(context.WithoutCancel(ctx)); err != nil {
			r.Failures++
			r.Error = err.Error()
		}
		r.Holds = append(r.Holds, hold{worker, granted.UnixNano(), releasing.UnixNano()})
		r.Waits = append(r.Waits, int64(granted.Sub(sent)))
	}
	return r
}

// rest waits, as a holder does for its work.
func rest(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// result summarises the holds of a contest.
type result struct {
	acquisitions int
	perSecond    float64
	handOffP50   float64 // microseconds from the release to the next holder's grant; NaN if there was none
	handOffP99   float64
	handOffShare float64 // share of grants to another goroutine than the last holder
	most, fewest int     // acquisitions of one goroutine
	waitP99      float64 // milliseconds
	failures     int
	failure      string
	overlaps     int // grants before the release of the holder: violations of exclusion
}

func judge(records []record, workers int, d time.Duration) result {
	var (
		holds []hold
		waits []int64
		res   result
	)
	for _, r := range records {
		holds, waits = append(holds, r.Holds...), append(waits, r.Waits...)
		res.failures += r.Failures
		res.failure = cmp.Or(res.failure, r.Error)
	}
	slices.SortFunc(holds, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
	counts := make([]int, workers)
	var handOffs []int64
	for i, h := range holds {
		counts[h.Worker]++
		if i == 0 {
			continue
		}
		last := holds[i-1]
		if h.Granted < last.Releasing {
			res.overlaps++
		}
		if h.Worker != last.Worker {
			handOffs = append(handOffs, h.Granted-last.Releasing)
		}
	}
	res.acquisitions = len(holds)
	res.perSecond = float64(len(holds)) / d.Seconds()
	res.handOffP50 = percentile(handOffs, 0.50) / 1e3
	res.handOffP99 = percentile(handOffs, 0.99) / 1e3
	res.handOffShare = float64(len(handOffs)) / float64(max(len(holds)-1, 1))
	res.most, res.fewest = slices.Max(counts), slices.Min(counts)
	res.waitP99 = percentile(waits, 0.99) / 1e6
	return res
}

// percentile sorts the values and returns the one that the share p of them does not exceed, NaN if
// there are none.
func percentile(values []int64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return float64(values[max(int(math.Ceil(p*float64(len(values))))-1, 0)])
}
