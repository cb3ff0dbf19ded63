package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
	"github.com/lockkeeper/lockkeeper/core/fence"
)

// fences checks that the fences of exclusive holds grow, also after a loss of the server's state.
// Only for a lease after that, holders from before it may still be there, with older ones.
func (p *part) fences() {
	var holds []*history.Call
	for _, c := range p.Calls {
		if c.Valid() && c.Weight == workload.Exclusive {
			holds = append(holds, c)
		}
	}
	slices.SortFunc(holds, func(a, b *history.Call) int { return cmp.Compare(a.From, b.From) })
	var last *history.Call
	for _, c := range holds {
		switch {
		case p.disordered(c.From) || last != nil && p.regressed(last.From, c.From):
			if last == nil || c.Fence > last.Fence || p.regressed(last.From, c.From) {
				last = c
			}
			continue
		case last != nil && c.Fence <= last.Fence:
			p.wrong(c.From, "fence %d after %d: %s after %s", c.Fence, last.Fence, name(c), name(last))
		}
		if last == nil || c.Fence > last.Fence {
			last = c
		}
	}
}

// disordered reports whether holders from before a loss of state may be there beside new ones.
func (p *part) disordered(at int64) bool {
	return slices.ContainsFunc(p.losses, func(f Fault) bool {
		return f.From <= at && at <= f.To+int64(p.subject.TTL+p.subject.Delay)
	})
}

// regressed reports whether the server may have lost its fences between two uses of a fence, while
// its clock was behind what it had been: the only way for fences to start again below those that
// were granted. The first use may be that of a holder from before, a lease after the loss.
func (p *part) regressed(from, to int64) bool {
	from -= int64(p.subject.TTL + p.subject.Delay)
	return slices.ContainsFunc(p.behind, func(f Fault) bool { return f.From < to && f.To > from })
}

// behind returns the losses of state at which the server's clock was behind what it had been.
func behind(faults []Fault) (all []Fault) {
	var (
		last   int64
		offset time.Duration // of the clock
		ahead  time.Duration // by how much it had been ahead of now, at most
	)
	for _, f := range faults {
		ahead = max(ahead-time.Duration(f.From-last), offset)
		last = f.From
		offset += f.Step
		ahead = max(ahead, offset)
		if f.Lost && ahead > offset {
			all = append(all, f)
		}
	}
	return all
}

// writes replays the writes of exclusive holders against a fence: it must let those of valid ones
// pass, and refuses what comes late.
func (p *part) writes() {
	slices.SortFunc(p.Writes, func(a, b history.Write) int { return cmp.Compare(a.At, b.At) })
	var mark fence.Mark
	var last int64
	for _, w := range p.Writes {
		if p.regressed(last, w.At) {
			mark = 0
		}
		next, err := mark.Admit(fence.Token{Number: w.Call.Fence})
		switch {
		case err == nil:
			mark, last = next, w.At
		case !w.Valid:
			p.Stale++
		case !p.disordered(w.At):
			p.wrong(w.At, "a valid holder's write was refused: %s: %v", name(w.Call), err)
		}
	}
}
