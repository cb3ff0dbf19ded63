package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Gap is a time in which a key had waiters and no holder.
type Gap struct {
	Place    history.Place
	From, To int64
}

// Length is the length of a gap.
func (g Gap) Length() time.Duration { return time.Duration(g.To - g.From) }

// noticed is the length of the shortest gap that is looked at.
const noticed = 20 * time.Millisecond

// Longest returns the longest gap between two times in the records of locks and semaphores. The
// hold of a killed process ends with it: the rest of its lease is a gap.
func Longest(records map[history.Place]*history.Record, subjects []workload.Subject, from, to int64) (longest Gap) {
	leases := make(map[string]bool)
	for _, s := range subjects {
		leases[s.Name] = s.Kind == workload.Lock || s.Kind == workload.Semaphore
	}
	for place, r := range records {
		if !leases[place.Subject] {
			continue
		}
		for _, g := range gaps(r.Calls, from, to) {
			if g.Length() > longest.Length() {
				g.Place = place
				longest = g
			}
		}
	}
	return longest
}

// gaps returns the gaps between two times.
func gaps(calls []*history.Call, from, to int64) (all []Gap) {
	var holds, waits []*history.Call
	for _, c := range calls {
		if c.Valid() && c.From <= to && last(c, to) >= from {
			holds = append(holds, c)
		}
		if c.Waits && c.Called < to && (waiting(c) || c.Returned > from) {
			waits = append(waits, c)
		}
	}
	slices.SortFunc(holds, func(a, b *history.Call) int { return cmp.Compare(a.From, b.From) })
	free := from // since when the key is free
	gap := func(until int64) {
		if until-free < int64(noticed) {
			return
		}
		first := until
		for _, c := range waits {
			if c.Called < first && (waiting(c) || c.Returned > free) {
				first = max(c.Called, free)
			}
		}
		if first < until {
			all = append(all, Gap{From: first, To: until})
		}
	}
	for _, c := range holds {
		if c.From > free {
			gap(c.From)
		}
		free = max(free, last(c, to))
	}
	gap(to)
	return all
}

// last is until when a hold was used, as known at a time: it may be held still, or its process may
// be paused or dead.
func last(c *history.Call, now int64) int64 {
	switch {
	case c.Closed:
		return c.To
	case c.Died != 0:
		return c.Died
	case c.Until == 0:
		return now
	}
	return min(now, max(c.To, c.Until))
}

// waiting reports whether a call has not returned, and can.
func waiting(c *history.Call) bool { return c.Returned == 0 && c.Died == 0 }

// patience is the longest gap without a fault, beside a lease and a lock-delay: that of a dead
// process ahead in the queue, several times.
const patience = 10 * time.Second

// stalls checks that, outside the time of faults, a key with waiters is not free for long.
func (p *part) stalls() {
	if len(p.Calls) == 0 || p.Untimed {
		return
	}
	var end int64
	for _, c := range p.Calls {
		end = max(end, c.Called, c.Returned, c.To)
	}
	for _, g := range gaps(p.Calls, p.Calls[0].Called, end) {
		calm := g.Length()
		for _, f := range p.faults {
			calm -= time.Duration(max(0, min(f.To, g.To)-max(f.From, g.From)))
		}
		if calm > p.subject.TTL+p.subject.Delay+patience {
			p.wrong(g.To, "nobody held it for %v, %v of them without a fault, while somebody waited", g.Length(), calm)
		}
	}
}
