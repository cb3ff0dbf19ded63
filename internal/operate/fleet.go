// Package operate is the part that the console and the command line have in common: what a fleet
// does, what is wrong with it, and the actions of operators with their log.
//
// core/inspect reads what a store has; core/presence what processes say of themselves. Nothing here
// needs a mechanism of this process, unless its comment says so.
package operate

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

// Row is what the processes of a fleet have under one kind and name of mechanism, on one kind of
// store.
type Row struct {
	Kind, Name string
	Store      string // its kind
	Parts      []Part
	Members    int
	// Activity sums up the parts, without their slots: [Row.Chart] has them.
	presence.Activity
}

// Part is a process's part of a row.
type Part struct {
	Process   *presence.Process
	Mechanism *presence.Mechanism
}

// Rows returns what the processes of a fleet have, by kind and name.
func Rows(fleet []presence.Process) []*Row {
	type id struct{ kind, name, store string }
	by := make(map[id]*Row)
	var rows []*Row
	for i := range fleet {
		p := &fleet[i]
		for j := range p.Mechanisms {
			m := &p.Mechanisms[j]
			of := id{m.Kind, m.Name, p.Stores[m.Store].Kind}
			row := by[of]
			if row == nil {
				row = &Row{Kind: m.Kind, Name: m.Name, Store: of.store}
				by[of] = row
				rows = append(rows, row)
			}
			row.add(Part{p, m})
		}
	}
	slices.SortFunc(rows, func(a, b *Row) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Store, b.Store))
	})
	return rows
}

func (r *Row) add(p Part) {
	r.Parts = append(r.Parts, p)
	r.Members += p.Mechanism.Members
	r.Passed += p.Mechanism.Passed
	r.Denied += p.Mechanism.Denied
	r.Failed += p.Mechanism.Failed
	r.Other += p.Mechanism.Other
	r.Waiting += p.Mechanism.Waiting
	r.Held += p.Mechanism.Held
}

// Settings returns the different settings of the parts, the most frequent first.
func (r *Row) Settings() []string {
	count := make(map[string]int)
	var different []string
	for _, p := range r.Parts {
		text := p.Mechanism.Settings
		if count[text]++; count[text] == 1 {
			different = append(different, text)
		}
	}
	slices.SortStableFunc(different, func(a, b string) int { return cmp.Compare(count[b], count[a]) })
	return different
}

// Reachable reports whether the row's mechanism has its state in the store of the fleet's documents,
// so that any process that has this store can show it.
func (r *Row) Reachable() bool {
	return slices.ContainsFunc(r.Parts, func(p Part) bool { return p.Mechanism.Store == 0 })
}

// DeniedKeys returns the keys that the parts have denied most, at most 100.
func (r *Row) DeniedKeys() []presence.DeniedKey {
	const most = 100
	sum := make(map[string]uint64)
	for _, p := range r.Parts {
		for _, k := range p.Mechanism.DeniedKeys {
			sum[k.Key] += k.Denials
		}
	}
	var keys []presence.DeniedKey
	for key, n := range sum {
		keys = append(keys, presence.DeniedKey{Key: key, Denials: n})
	}
	slices.SortFunc(keys, func(a, b presence.DeniedKey) int {
		return cmp.Or(cmp.Compare(b.Denials, a.Denials), cmp.Compare(a.Key, b.Key))
	})
	return keys[:min(len(keys), most)]
}

// Points is the number of points of a chart: the slots of ten minutes, and the open one.
const Points = live.Slots + 1

// Point is what happened in one slot of a chart.
type Point struct {
	Passed    uint64 `json:"passed"`
	Denied    uint64 `json:"denied"`
	Failed    uint64 `json:"failed"`
	Other     uint64 `json:"other"`
	Waiting   uint64 `json:"waiting"`   // the most at a time, added up over the processes
	Held      uint64 `json:"held"`      // likewise
	Lost      uint64 `json:"lost"`      // leases, while their holders believed in them
	Unrenewed uint64 `json:"unrenewed"` // renewals that failed
	Candidate uint64 `json:"candidate"` // requests that a candidate, or a limit in shadow, would have denied

	P50      time.Duration `json:"p50_ns"`
	P99      time.Duration `json:"p99_ns"`
	Measured bool          `json:"measured"` // P50 and P99 are known
}

// Calls is the number of calls.
func (p *Point) Calls() uint64 { return p.Passed + p.Denied + p.Failed + p.Other }

// Chart returns the last ten minutes, the oldest point first. The slots of processes begin at
// different times: a point has those whose age is the same but for one slot, and the last point has
// the open ones. So the sum of a chart is that of the slots.
func (r *Row) Chart() []Point {
	points := make([]Point, Points)
	took := make([][]presence.Slot, Points)
	for _, part := range r.Parts {
		m := part.Mechanism
		late := int(m.Open / presence.SlotLength) // of a history that was written some time ago
		for i := range m.Slots {
			at := Points - (len(m.Slots) - i) - late
			if at < 0 {
				continue
			}
			points[at].add(&m.Slots[i])
			took[at] = append(took[at], m.Slots[i])
		}
	}
	for i := range points {
		points[i].measure(took[i]...)
	}
	return points
}

// Latest returns what happened in the last slot of each part that has ended, which is 5 s long.
func (r *Row) Latest() (now Point) {
	return r.sum(func(slots []presence.Slot) []presence.Slot { return lastOf(slots, 1) })
}

// Minute returns what happened in the last minute.
func (r *Row) Minute() (minute Point) {
	return r.sum(func(slots []presence.Slot) []presence.Slot {
		return lastOf(slots, int(time.Minute/presence.SlotLength))
	})
}

// lastOf returns the last n slots that have ended.
func lastOf(slots []presence.Slot, n int) []presence.Slot {
	ended := slots[:max(len(slots)-1, 0)]
	return ended[max(len(ended)-n, 0):]
}

func (r *Row) sum(of func([]presence.Slot) []presence.Slot) (sum Point) {
	var took []presence.Slot
	for _, part := range r.Parts {
		some := of(part.Mechanism.Slots)
		for i := range some {
			sum.add(&some[i])
		}
		took = append(took, some...)
	}
	sum.measure(took...)
	return sum
}

func (p *Point) add(s *presence.Slot) {
	p.Passed += uint64(s.Counts[live.Passed])
	p.Denied += uint64(s.Counts[live.Denied])
	p.Failed += uint64(s.Counts[live.Failed])
	p.Other += uint64(s.Counts[live.Other])
	p.Lost += uint64(s.Counts[live.Lost])
	p.Unrenewed += uint64(s.Counts[live.Unrenewed])
	p.Candidate += uint64(s.Counts[live.Candidate])
	p.Waiting += uint64(s.Waiting)
	p.Held += uint64(s.Held)
}

func (p *Point) measure(slots ...presence.Slot) {
	p.P50, p.Measured = presence.Percentile(0.5, slots...)
	p.P99, _ = presence.Percentile(0.99, slots...)
}
