package pgstore

import (
	"bytes"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// sums are ordinary charges, added up for each bucket. A hot bucket is so written once for all
// decisions of a batch about it.
type sums struct {
	all       []*sum
	of        map[[16]byte]*sum
	decisions []*decision
}

// sum is the charges to one bucket. They are made together or not at all.
type sum struct {
	id     [16]byte
	charge *store.Charge // the first of them
	cost   time.Duration
	parts  []part
}

// part is a charge of a decision.
type part struct {
	decision *decision
	charge   int
}

// addUp adds a decision to the last of some, which are the sums of one statement each:
//   - If there is no room, it adds the decision to new sums.
//   - If one of the charges does not match others to its bucket, it adds the decision to the rest.
func addUp(some []*sums, rest []*decision, d *decision) ([]*sums, []*decision) {
	if len(some) == 0 || !some[len(some)-1].hasRoom(d) {
		some = append(some, &sums{of: make(map[[16]byte]*sum)})
	}
	if !some[len(some)-1].add(d) {
		rest = append(rest, d)
	}
	return some, rest
}

// hasRoom reports whether a decision can be added to the statement's decisions.
func (s *sums) hasRoom(d *decision) bool {
	more := 0
	for _, id := range d.ids {
		if s.of[id] == nil {
			more++
		}
	}
	return len(s.all) == 0 || len(s.all)+more <= maxCharges
}

// add adds a decision. It returns false, and adds nothing, if one of the charges does not match
// others to its bucket.
func (s *sums) add(d *decision) bool {
	for i, c := range d.charges {
		k := s.of[d.ids[i]]
		if k != nil && (k.charge.Capacity != c.Capacity || k.charge.Interval != c.Interval || c.Cost > c.Capacity-k.cost) {
			return false
		}
	}
	for i, c := range d.charges {
		k := s.of[d.ids[i]]
		if k == nil {
			k = &sum{id: d.ids[i], charge: c}
			s.of[k.id] = k
			s.all = append(s.all, k)
		}
		k.cost += c.Cost
		k.parts = append(k.parts, part{d, i})
	}
	s.decisions = append(s.decisions, d)
	return true
}

// sumArgs are the arguments of a statement that makes the charges of sums.
type sumArgs struct {
	ids                          [][16]byte
	intervals, costs, capacities []int64
}

func compareIDs(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) }

// args returns the arguments for all sums, and sorts them by their buckets.
func (s *sums) args() sumArgs {
	slices.SortFunc(s.all, func(a, b *sum) int { return compareIDs(a.id, b.id) })
	n := len(s.all)
	a := sumArgs{make([][16]byte, n), make([]int64, n), make([]int64, n), make([]int64, n)}
	for i, k := range s.all {
		a.ids[i], a.intervals[i] = k.id, int64(k.charge.Interval)
		a.costs[i], a.capacities[i] = int64(k.cost), int64(k.charge.Capacity)
	}
	return a
}

// unmade stands for the debt after charges that were not made.
const unmade = -1 << 63

// finish ends the decisions, given the debts after all charges, or none if no charge was made. It
// returns the decisions whose charges were not made.
func (s *sums) finish(debts []int64, err error) (left []*decision) {
	switch {
	case err != nil:
		for _, d := range s.decisions {
			d.Finish(err)
		}
		return nil
	case debts == nil:
		return s.decisions
	}
	for _, d := range s.decisions {
		d.reply = store.TakeReply{Allowed: true, Taken: 1, Debts: store.MakeDebts(len(d.ids))}
		d.Finish(nil)
	}
	for i, k := range s.all {
		if debts[i] == unmade {
			for _, p := range k.parts {
				left = append(left, p.decision)
			}
			continue
		}
		debt := time.Duration(debts[i])
		for _, p := range slices.Backward(k.parts) { // each has the debt that the charges before it left
			p.decision.reply.Debts.Set(p.charge, k.charge.Debt(debt))
			debt -= p.decision.charges[p.charge].Cost
		}
	}
	return left
}
