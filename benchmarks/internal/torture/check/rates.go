package check

import (
	"cmp"
	"slices"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
)

// rates checks that in no time more tokens were allowed than the burst and what has come back. What
// was called and has returned within a time was decided in it. A loss of state fills the buckets,
// so no time is considered that has one in it.
// Settlements may overdraw a bucket, and each process may use a block that it has taken before.
func (p *part) rates() {
	slices.SortFunc(p.Charges, func(a, b history.Charge) int { return cmp.Compare(a.Called, b.Called) })
	for _, epoch := range p.epochs() {
		for _, l := range p.subject.Limits {
			p.rate(epoch, float64(l.Rate), float64(l.Burst+l.Overdraft+p.subject.Block*int64(p.Workers)))
		}
	}
}

// epochs returns the charges between losses of state.
func (p *part) epochs() (all [][]history.Charge) {
	var from int64
	add := func(to int64) {
		var some []history.Charge
		for _, c := range p.Charges {
			if c.Called >= from && (to == 0 || c.Returned <= to) {
				some = append(some, c)
			}
		}
		all = append(all, some)
	}
	for _, f := range p.losses {
		add(f.From)
		from = f.To
	}
	add(0)
	return all
}

// rate checks one limit, in all times of up to longest charges. Charges are in the order of their
// calls.
func (p *part) rate(charges []history.Charge, rate, burst float64) {
	const longest = 10_000
	returned := slices.SortedFunc(slices.Values(charges), func(a, b history.Charge) int { return cmp.Compare(a.Returned, b.Returned) })
	for _, first := range charges {
		from, _ := slices.BinarySearchFunc(returned, first.Called, func(c history.Charge, at int64) int { return cmp.Compare(c.Returned, at) })
		var tokens float64
		for _, c := range returned[from:min(from+longest, len(returned))] {
			if c.Called < first.Called {
				continue
			}
			tokens += float64(c.N)
			if room := burst + rate*float64(c.Returned-first.Called)/1e9; tokens > room+1e-6 {
				p.wrong(c.Returned, "%.0f tokens in %.3f s, at %.0f a second and %.0f at once: %.1f too many",
					tokens, float64(c.Returned-first.Called)/1e9, rate, burst, tokens-room)
				return
			}
		}
	}
}

// holds checks that nothing was allowed while the key was held: what was called after the hold had
// returned, and has returned before it could have ended.
func (p *part) holds() {
	const rounding = 1e6 // of a store that counts milliseconds
	for _, h := range p.Holds {
		from, _ := slices.BinarySearchFunc(p.Charges, h.Returned+1, func(c history.Charge, at int64) int { return cmp.Compare(c.Called, at) })
		for _, c := range p.Charges[from:] {
			end := h.Called + h.For - rounding
			if c.Called >= end {
				break
			}
			if c.Returned < end && !p.lost(h.Called, c.Returned) {
				p.wrong(c.Returned, "%d tokens, although the key was held from %s to %s", c.N, ms(h.Returned), ms(end))
			}
		}
	}
}
