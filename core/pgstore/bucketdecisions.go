package pgstore

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// decision is a decision, or a settlement, that may be batched with others.
type decision struct {
	batch.Queued
	times   int64           // largest number of times that the costs are charged, or settles
	charges []*store.Charge // of all requests
	ids     [][16]byte      // of the charges' buckets
	mayFail bool            // its key was denied lately, so it may well be denied
	reply   store.TakeReply
}

// settles is the times of a settlement.
const settles = 0

// Work implements batch.Request.
func (d *decision) Work() int { return len(d.ids) }

// decide makes the decisions of a batch, in up to four statements, nearly always in one:
//   - ordinary charges of one bucket, by an upsert: half the time of the last kind;
//   - ordinary charges of several buckets, by an upsert of all or none: likewise;
//   - decisions without costs, which change nothing;
//   - all other decisions, and the ones that the first two statements did not make.
func (s *Store) decide(ctx context.Context, all []*decision) (replied bool) {
	var single, together []*sums
	var peeks, rest []*decision
	for _, d := range all {
		switch {
		case d.reads():
			peeks = append(peeks, d)
		case d.mayFail || !d.isOrdinary():
			rest = append(rest, d)
		case len(d.ids) == 1:
			single, rest = addUp(single, rest, d)
		default:
			together, rest = addUp(together, rest, d)
		}
	}
	charge := func(some []*sums, text func(a sumArgs) func(ctx context.Context, c *pgx.Conn) ([]int64, error)) {
		call := statement.Call{Operation: opTakeTokens, Writes: true, Once: true}
		for _, k := range some {
			debts, err := statement.Run(ctx, s.db, call, text(k.args()))
			replied = replied || err == nil
			rest = append(rest, k.finish(debts, err)...)
		}
	}
	charge(single, s.chargeEach)
	charge(together, s.chargeTogether)
	replied = s.decideRest(ctx, statement.Call{Operation: opTakeTokens, Urgency: batch.Reading}, peeks) || replied
	return s.decideRest(ctx, statement.Call{Operation: opTakeTokens, Writes: true, Once: true}, rest) || replied
}

// decideRest makes decisions in statements for any kind of them.
func (s *Store) decideRest(ctx context.Context, call statement.Call, rest []*decision) (replied bool) {
	for groups := groupsOf(rest); len(groups) > 0; {
		n, work := 1, len(groups[0].charges)
		for n < len(groups) && work+len(groups[n].charges) <= maxCharges {
			work += len(groups[n].charges)
			n++
		}
		replied = s.decideGroups(ctx, call, groups[:n]) || replied
		groups = groups[n:]
	}
	return replied
}

// decideGroups makes groups of decisions in one statement for any kind of them.
func (s *Store) decideGroups(ctx context.Context, call statement.Call, groups []*group) (replied bool) {
	reply, err := statement.Run(ctx, s.db, call, s.takeGroups(groups))
	first := 0
	for i, g := range groups {
		if err != nil {
			g.fail(err)
			continue
		}
		g.finish(&reply, i, first)
		first += len(g.charges)
	}
	return err == nil
}

// reads reports whether a decision has no costs, and so changes nothing.
func (d *decision) reads() bool {
	return d.times != settles && !slices.ContainsFunc(d.charges, func(c *store.Charge) bool { return c.Cost != 0 })
}

// isOrdinary reports whether all charges of a decision can be parts of sums. The charges of other
// decisions may be denied for certain, or change more than a debt.
func (d *decision) isOrdinary() bool {
	for i, c := range d.charges {
		if c.Period != nil || c.Cost <= 0 || c.Cost > c.Capacity || slices.Contains(d.ids[:i], d.ids[i]) {
			return false
		}
	}
	return d.times == 1
}

// chargeBuckets makes ordinary charges, each to another bucket. It makes a charge if the bucket has
// room, is not held, and is full or was charged at the same interval. It returns the buckets'
// debts, in cost. The server evaluates the part behind ON CONFLICT after it has locked the row.
const chargeBuckets = `INSERT INTO lk.buckets AS b (id, debt, interval, cost, capacity)
SELECT id, lk.now_us() * 1000 + cost, interval, cost, capacity
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS c (id, interval, cost, capacity) ORDER BY id
ON CONFLICT (id) DO UPDATE SET
  debt = greatest(b.debt, lk.now_us() * 1000) + excluded.cost, interval = excluded.interval,
  cost = greatest(b.debt - lk.now_us() * 1000, 0) + excluded.cost
WHERE b.ends IS NULL AND b.held IS NULL AND (b.interval = excluded.interval OR b.debt <= lk.now_us() * 1000)
  AND greatest(b.debt - lk.now_us() * 1000, 0) <= excluded.capacity - excluded.cost
RETURNING b.id, b.cost, b.ctid`

func (s *Store) chargeEach(a sumArgs) func(ctx context.Context, c *pgx.Conn) ([]int64, error) {
	return func(ctx context.Context, c *pgx.Conn) ([]int64, error) {
		if len(a.ids) == 1 {
			if debt, tried, err := s.chargeOne(ctx, c, a); tried {
				return []int64{debt}, err
			}
		}
		rows, err := c.Query(ctx, s.db.Text(chargeBuckets), uuids(a.ids), a.intervals, a.costs, a.capacities)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		var at pgtype.TID
		debts := make([]int64, len(a.ids))
		for i := range debts {
			debts[i] = unmade
		}
		for rows.Next() {
			var id pgtype.UUID
			var debt int64
			if err := rows.Scan(&id, &debt, &at); err != nil {
				return nil, err
			}
			i, found := slices.BinarySearchFunc(a.ids, id.Bytes, compareIDs)
			if !found {
				return nil, errOddReply
			}
			debts[i] = debt
		}
		if rows.Err() == nil && len(debts) == 1 && debts[0] != unmade {
			s.buckets.rows.set(a.ids[0], at)
		}
		return debts, rows.Err()
	}
}

// chargeNewest makes an ordinary charge to a bucket whose row was seen in a place. It returns NULLs
// if there is no row, or if the row does not take the charge. Beside a transaction that keeps
// 100,000 older versions of the row, it takes a tenth of the time of the upsert, which visits all
// of them.
const chargeNewest = "SELECT debt, place FROM lk.charge_newest_1($1, $2, $3, $4, $5)"

// chargeOne makes a charge to a bucket if this process knows the place of its row. Otherwise tried
// is false.
func (s *Store) chargeOne(ctx context.Context, c *pgx.Conn, a sumArgs) (debt int64, tried bool, err error) {
	id, rows := a.ids[0], &s.buckets.rows
	at := rows.get(id)
	if !at.Valid {
		return 0, false, nil
	}
	var made *int64
	err = c.QueryRow(ctx, s.db.Text(chargeNewest), id, a.intervals[0], a.costs[0], a.capacities[0], at).Scan(&made, &at)
	if err != nil || made == nil {
		return unmade, true, err
	}
	rows.set(id, at)
	return *made, true, nil
}

func (s *Store) chargeTogether(a sumArgs) func(ctx context.Context, c *pgx.Conn) ([]int64, error) {
	return func(ctx context.Context, c *pgx.Conn) (debts []int64, err error) {
		err = c.QueryRow(ctx, s.db.Text("SELECT lk.charge_together_1($1, $2, $3, $4)"),
			uuids(a.ids), a.intervals, a.costs, a.capacities).Scan(&debts)
		if err == nil && debts != nil && len(debts) != len(a.ids) {
			err = errOddReply
		}
		return debts, err
	}
}

var errOddReply = errors.New("an unexpected reply")
