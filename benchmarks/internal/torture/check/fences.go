package check

import (
	"cmp"
	"slices"

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
		case p.disordered(c.From) || last != nil && (p.regressed(last.From, c.From) || p.setBack(last.From, c.From)):
			if last == nil || c.Fence > last.Fence || p.regressed(last.From, c.From) || p.setBack(last.From, c.From) {
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

// regressed reports whether fences may have started again, between two uses of a fence, below those
// that were granted: the first use was before a loss, the second one since the clock was behind. The
// first use may also be that of a holder from before, a lease after the loss.
func (p *part) regressed(from, to int64) bool {
	from -= int64(p.subject.TTL + p.subject.Delay)
	return slices.ContainsFunc(p.setbacks, func(s setback) bool { return from < s.lost && s.behind < to })
}

// setBack reports whether the server's clock was set back, and fences of tasks began again with it:
// that of a task goes with it.
func (p *part) setBack(from, to int64) bool {
	return p.subject.Kind == workload.Task && slices.ContainsFunc(p.faults, func(f Fault) bool { return f.Step < 0 && f.From < to && f.To > from-int64(p.subject.TTL) })
}

// setback is a loss of fences and a clock that was behind what it had shown by then, at the loss or
// later: the only way for fences to start again below those that were granted. A key that was
// granted in between has a fence from before the clock's step, and keeps it.
type setback struct {
	lost   int64 // the loss's end
	behind int64 // when the clock began to be behind
}

func setbacks(faults []Fault) (all []setback) {
	type loss struct{ at, shown int64 }
	var (
		open   []loss // those since which the clock has not been behind
		shown  int64  // the latest time that the clock has shown
		offset int64  // of the clock
	)
	for _, f := range faults {
		shown = max(shown, f.From+offset)
		offset += int64(f.Step)
		shown = max(shown, f.From+offset)
		if (f.Lost || f.Failover) && f.Step == 0 { // a step ends leases, and keeps fences
			open = append(open, loss{f.To, shown})
		}
		open = slices.DeleteFunc(open, func(l loss) bool {
			behind := f.From+offset < l.shown
			if behind {
				all = append(all, setback{l.at, f.From})
			}
			return behind
		})
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
