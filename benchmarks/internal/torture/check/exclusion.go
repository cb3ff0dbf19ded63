package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
)

// piece is a time for which a hold excludes others.
type piece struct {
	from, to int64
	call     *history.Call
}

// handOn is for how long a process hands a hold on, and as much again for its scheduling.
const handOn = int64(100 * time.Millisecond)

// end is until when a hold excludes others. That of a killed process does until its lease, as last
// renewed to the process's knowledge, has run out, and a lock-delay after it.
func (p *part) end(c *history.Call) int64 {
	if !c.Closed && c.Until != 0 {
		return max(c.To, c.Until+int64(p.subject.Delay))
	}
	return c.To
}

// pieces returns when a hold excludes others: not after the server has lost it. It may have been
// granted at any time since its call, and handOn earlier to another caller of the process.
func (p *part) pieces(c *history.Call) (all []piece) {
	from, end := c.From, p.end(c)
	for _, f := range p.losses {
		if f.To+handOn < c.Called || f.From > end {
			continue
		}
		if f.From > from {
			all = append(all, piece{from, f.From, c})
		}
		from = max(from, f.To+int64(p.subject.TTL+p.subject.Delay))
	}
	if from <= end { // a hold that was seen only once was valid for an instant
		all = append(all, piece{from, max(end, from+1), c})
	}
	return all
}

// exclusion checks that the weights of all valid holds never exceed the capacity.
func (p *part) exclusion() {
	var starts, ends []piece
	for _, c := range p.Calls {
		if c.Valid() {
			starts = append(starts, p.pieces(c)...)
		}
	}
	ends = slices.Clone(starts)
	slices.SortFunc(starts, func(a, b piece) int { return cmp.Compare(a.from, b.from) })
	slices.SortFunc(ends, func(a, b piece) int { return cmp.Compare(a.to, b.to) })
	live := make(map[piece]struct{})
	var inUse int64
	for _, s := range starts {
		for len(ends) > 0 && ends[0].to <= s.from {
			inUse -= ends[0].call.Weight
			delete(live, ends[0])
			ends = ends[1:]
		}
		if inUse += s.call.Weight; inUse > p.subject.Capacity {
			p.overlap(s, live, inUse)
		}
		live[s] = struct{}{}
	}
}

func (p *part) overlap(s piece, live map[piece]struct{}, inUse int64) {
	var longest piece
	for other := range live {
		if other.to > longest.to {
			longest = other
		}
	}
	both := min(s.to, longest.to) - s.from
	if p.subject.Kind == "semaphore" {
		p.wrong(s.from, "%d of %d in use for %.1f ms: %s, beside %d others such as %s",
			inUse, p.subject.Capacity, float64(both)/1e6, name(s.call), len(live), name(longest.call))
		return
	}
	p.wrong(s.from, "two valid holders for %.1f ms: %s, and %s", float64(both)/1e6, name(longest.call), name(s.call))
}

// reserves checks that a request with a reserve was not granted out of what it leaves to others:
// what was in use all the time in which it may have been granted was so when it was. That may have
// been for an earlier caller of its process, which has left, but not longer ago than the lease.
func (p *part) reserves() {
	for _, c := range p.Calls {
		if !c.Valid() || c.Reserve == 0 || p.lost(c.Called-int64(p.subject.TTL), c.Returned) {
			continue
		}
		inUse, since := c.Weight, min(c.Called, c.Returned-int64(p.subject.TTL))
		for _, other := range p.Calls {
			if other != c && other.Valid() && other.From <= since && other.To >= c.Returned {
				inUse += other.Weight
			}
		}
		if inUse > p.subject.Capacity-c.Reserve {
			p.wrong(c.Returned, "%d of %d in use, of which %s leaves %d to others", inUse, p.subject.Capacity, name(c), c.Reserve)
		}
	}
}
