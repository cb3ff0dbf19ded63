package pgstore

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// group is decisions that are alike. lk.take_tokens_1 makes them as one, as often as all capacities
// allow.
type group struct {
	decisions []*decision
	times     int64
	charges   []bucketCharge
	of        []int // for each charge of a decision: its index in charges
}

// bucketCharge is all charges of a decision to one bucket.
type bucketCharge struct {
	id [16]byte
	store.Charge
}

// groupsOf groups decisions that are alike.
func groupsOf(all []*decision) (groups []*group) {
	known := make(map[[16]byte]*group, len(all)) // the last group by its first bucket
	for _, d := range all {
		if g := known[d.ids[0]]; g != nil && g.takes(d) {
			g.decisions = append(g.decisions, d)
			g.times += d.times
			continue
		}
		g := newGroup(d)
		known[d.ids[0]] = g
		groups = append(groups, g)
	}
	return groups
}

func newGroup(d *decision) *group {
	g := &group{decisions: []*decision{d}, times: d.times, of: make([]int, len(d.ids))}
	for i, id := range d.ids {
		c := d.charges[i]
		at := slices.IndexFunc(g.charges, func(b bucketCharge) bool { return b.id == id })
		if at < 0 {
			at = len(g.charges)
			g.charges = append(g.charges, bucketCharge{id, *c})
		} else if b := &g.charges[at]; b.Cost == 0 {
			b.Charge = *c
		} else if c.Cost != 0 {
			b.Capacity = min(b.Capacity, c.Capacity)
			b.Cost = min(b.Cost, math.MaxInt64-c.Cost) + c.Cost // of takes, which is positive
		}
		g.of[i] = at
	}
	return g
}

// takes reports whether the group can take a decision: it is like the decisions of the group.
func (g *group) takes(d *decision) bool {
	first := g.decisions[0]
	return g.times != settles && d.times != settles && d.times <= math.MaxInt64-g.times &&
		slices.Equal(first.ids, d.ids) &&
		slices.EqualFunc(first.charges, d.charges, func(a, b *store.Charge) bool { return a == b || *a == *b })
}

func (g *group) fail(err error) {
	for _, d := range g.decisions {
		d.Finish(err)
	}
}

// taken is the reply of lk.take_tokens_1.
type taken struct{ times, held, debts, lefts []int64 }

const takeTokens = "SELECT taken, held, debts, lefts " +
	"FROM lk.take_tokens_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"

func (s *Store) takeGroups(groups []*group) func(ctx context.Context, c *pgx.Conn) (taken, error) {
	var (
		times, costs, capacities, mosts, intervals []int64
		sizes                                      []int32
		ids                                        [][16]byte
		freshes                                    []bool
		begins, ends, nexts                        []*int64
		dated                                      bool
	)
	for _, g := range groups {
		times, sizes = append(times, g.times), append(sizes, int32(len(g.charges))) //nolint:gosec // few
		for _, c := range g.charges {
			ids, costs, capacities = append(ids, c.id), append(costs, int64(c.Cost)), append(capacities, int64(c.Capacity))
			mosts, intervals = append(mosts, int64(c.Capacity+c.Overdraft)), append(intervals, int64(c.Interval))
			freshes = append(freshes, c.Fresh)
			var begin, end, next *int64
			if c.Period != nil {
				begin, end, next, dated = microsAt(c.Period.Begin), microsAt(c.Period.End), microsAt(c.Period.Next), true
			}
			begins, ends, nexts = append(begins, begin), append(ends, end), append(nexts, next)
		}
	}
	if !dated {
		begins, ends, nexts = nil, nil, nil
	}
	return func(ctx context.Context, c *pgx.Conn) (reply taken, err error) {
		err = c.QueryRow(ctx, s.db.Text(takeTokens),
			times, sizes, uuids(ids), costs, capacities, mosts, intervals, freshes, begins, ends, nexts).
			Scan(&reply.times, &reply.held, &reply.debts, &reply.lefts)
		if err == nil && (len(reply.times) != len(times) || len(reply.held) != len(times) || len(reply.debts) != len(ids) ||
			dated && len(reply.lefts) != len(ids)) {
			err = errOddReply
		}
		return reply, err
	}
}

func microsAt(t time.Time) *int64 {
	n := t.UnixMicro()
	return &n
}

// finish ends the decisions of group i, whose charges begin at first. The tokens that were taken go
// to the decisions in their order: each has the debts that it would have if it had been made alone.
func (g *group) finish(reply *taken, i, first int) {
	left := reply.times[i]
	for _, d := range g.decisions {
		n := left
		if d.times != settles {
			n = min(n, d.times)
			left -= n
		}
		d.reply = store.TakeReply{
			Allowed: n > 0, Taken: n, Held: time.Duration(reply.held[i]) * time.Microsecond, Debts: store.MakeDebts(len(d.ids)),
		}
		for k, at := range g.of {
			debt := time.Duration(reply.debts[first+at])
			if d.times != settles {
				debt -= g.charges[at].Cost * time.Duration(left)
			}
			d.reply.Debts.Set(k, d.charges[k].Debt(debt))
			if d.charges[k].Period != nil {
				d.reply.Debts.SetEnd(k, len(d.ids), time.Duration(reply.lefts[first+at])*time.Microsecond)
			}
		}
		d.Finish(nil)
	}
}
