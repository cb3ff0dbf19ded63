package pgstore

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// decision is a decision, or a settlement, that may be batched with others.
type decision struct {
	batch.Queued
	times    int64           // how often the costs are charged at most, or settles
	charges  []*store.Charge // of all requests
	ids      [][16]byte      // of the charges' buckets
	expected expectation
	reply    store.TakeReply
}

// expectation is what a decision will probably be, by those that are remembered.
type expectation int8

const (
	anything expectation = iota
	perhapsDenial
	denial // unless another process has given tokens back
)

// settles is the times of a settlement.
const settles = 0

// Work implements batch.Request.
func (d *decision) Work() int { return len(d.ids) }

// decide makes the decisions of a batch, in up to five statements, nearly always in one:
//   - ordinary charges of one bucket,
//   - ordinary charges of several buckets,
//   - expected denials, which it only reads,
//   - decisions without costs, likewise,
//   - other decisions, and those that the first three could not make.
func (s *Store) decide(ctx context.Context, all []*decision) (replied bool) {
	var single, together []*sums
	var peeks, looks, rest []*decision
	for _, d := range all {
		switch {
		case d.reads():
			peeks = append(peeks, d)
		case d.expected == denial && d.isOrdinary() && len(d.ids) == 1:
			looks = append(looks, d)
		case d.expected != anything || !d.isOrdinary():
			rest = append(rest, d)
		case len(d.ids) == 1:
			single, rest = addUp(single, rest, d)
		default:
			together, rest = addUp(together, rest, d)
		}
	}
	if len(looks) > 0 {
		debts, err := statement.Run(ctx, s.db, statement.Call{Operation: opTakeTokens, Brief: true}, s.findDenied(looks))
		replied = err == nil
		rest = append(rest, deny(looks, debts, err)...)
	}
	charge := func(some []*sums, text func(a sumArgs) func(ctx context.Context, c *pgx.Conn) ([]int64, error)) {
		for _, k := range some {
			debts, err := statement.Run(ctx, s.db, statement.Call{Operation: opTakeTokens, Writes: true, Once: true}, text(k.args()))
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
func (s *Store) decideRest(ctx context.Context, st statement.Call, rest []*decision) (replied bool) {
	for groups := groupsOf(rest); len(groups) > 0; {
		n, work := 1, len(groups[0].charges)
		for n < len(groups) && work+len(groups[n].charges) <= maxCharges {
			work += len(groups[n].charges)
			n++
		}
		replied = s.decideGroups(ctx, st, groups[:n]) || replied
		groups = groups[n:]
	}
	return replied
}

// decideGroups makes decisions that are not ordinary, or were not made, in one statement.
func (s *Store) decideGroups(ctx context.Context, st statement.Call, groups []*group) (replied bool) {
	reply, err := statement.Run(ctx, s.db, st, s.takeGroups(groups))
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

// isOrdinary reports whether all charges of a decision can be parts of sums. Those that are not may
// be denied for certain, or change more than a debt.
func (d *decision) isOrdinary() bool {
	for i, c := range d.charges {
		if c.Period != nil || c.Cost <= 0 || c.Cost > c.Capacity || slices.Contains(d.ids[:i], d.ids[i]) {
			return false
		}
	}
	return d.times == 1
}

// chargeBuckets makes ordinary charges, each to another bucket: those whose bucket has room, is not
// held, and was charged at the same interval or is full. It returns their debts, which is what cost
// becomes. What follows ON CONFLICT is evaluated after the row is locked.
const chargeBuckets = `INSERT INTO lk.buckets AS b (id, debt, interval, cost, capacity)
SELECT id, lk.now_us() * 1000 + cost, interval, cost, capacity
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS c (id, interval, cost, capacity) ORDER BY id
ON CONFLICT (id) DO UPDATE SET debt = greatest(b.debt, lk.now_us() * 1000) + excluded.cost, interval = excluded.interval,
  cost = greatest(b.debt - lk.now_us() * 1000, 0) + excluded.cost
WHERE b.ends IS NULL AND b.held IS NULL AND (b.interval = excluded.interval OR b.debt <= lk.now_us() * 1000)
  AND greatest(b.debt - lk.now_us() * 1000, 0) <= excluded.capacity - excluded.cost
RETURNING b.id, b.cost, b.ctid`

// chargeKnown is chargeBuckets for one bucket that has a row. It returns no row either if another
// transaction changes that, which chargeNewest waits for.
var chargeKnown = `UPDATE lk.buckets b SET debt = greatest(b.debt, lk.now_us() * 1000) + $3::bigint, interval = $2::bigint,
  cost = greatest(b.debt - lk.now_us() * 1000, 0) + $3::bigint
WHERE b.id = $1 AND b.ctid = ` + newestOf("lk.buckets", "$1", "$5") + `
  AND b.ends IS NULL AND b.held IS NULL AND (b.interval = $2::bigint OR b.debt <= lk.now_us() * 1000)
  AND greatest(b.debt - lk.now_us() * 1000, 0) <= $4::bigint - $3::bigint
RETURNING b.cost, b.ctid`

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

// findDenied returns the numbers of the ordinary charges for which their buckets have no room, and
// the buckets' debts.
const findDenied = `SELECT c.n, b.debt - n.t
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS c (id, interval, cost, capacity, n)
  JOIN lk.buckets b ON b.id = c.id, (SELECT lk.now_us() * 1000 AS t) n
WHERE b.ends IS NULL AND b.held IS NULL AND b.interval = c.interval AND b.debt - n.t > c.capacity - c.cost`

// findDenied returns the debts of the decisions that are to be denied, by their numbers.
func (s *Store) findDenied(all []*decision) func(ctx context.Context, c *pgx.Conn) (map[int]int64, error) {
	n := len(all)
	a := sumArgs{make([][16]byte, n), make([]int64, n), make([]int64, n), make([]int64, n)}
	for i, d := range all {
		c := d.charges[0]
		a.ids[i], a.intervals[i], a.costs[i], a.capacities[i] = d.ids[0], int64(c.Interval), int64(c.Cost), int64(c.Capacity)
	}
	return func(ctx context.Context, c *pgx.Conn) (map[int]int64, error) {
		rows, err := c.Query(ctx, s.db.Text(findDenied), uuids(a.ids), a.intervals, a.costs, a.capacities)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		debts := make(map[int]int64, n)
		for rows.Next() {
			var number int
			var debt int64
			if err := rows.Scan(&number, &debt); err != nil {
				return nil, err
			}
			debts[number-1] = debt
		}
		return debts, rows.Err()
	}
}

// deny ends the decisions that are denied, given their debts, or all of them with an error, and
// returns the others.
func deny(all []*decision, debts map[int]int64, err error) (left []*decision) {
	for i, d := range all {
		debt, denied := debts[i]
		switch {
		case err != nil:
			d.Finish(err)
		case !denied:
			left = append(left, d)
		default:
			d.reply = store.TakeReply{Debts: store.MakeDebts(1)}
			d.reply.Debts.Set(0, d.charges[0].Debt(time.Duration(debt)))
			d.Finish(nil)
		}
	}
	return left
}

// chargeNewest waits for other transactions that change the row. It returns NULLs if there is no
// row, or it does not take the charge.
const chargeNewest = "SELECT debt, place FROM lk.charge_newest_1($1, $2, $3, $4, $5)"

// chargeOne makes a charge to a bucket of which this process knows that it has a row; tried is
// false if it does not know. Calls for a row take turns: the server would have them wait, and then
// not find the row where it was.
func (s *Store) chargeOne(ctx context.Context, c *pgx.Conn, a sumArgs) (debt int64, tried bool, err error) {
	id, rows := a.ids[0], &s.buckets.rows
	if !rows.get(id).Valid {
		return 0, false, nil
	}
	if end, ok := rows.turn(id); ok {
		defer end()
		at := rows.get(id)
		err = c.QueryRow(ctx, s.db.Text(chargeKnown), id, a.intervals[0], a.costs[0], a.capacities[0], at).Scan(&debt, &at)
		if err == nil {
			rows.set(id, at)
		}
		if !errors.Is(err, pgx.ErrNoRows) {
			return debt, true, err
		}
	}
	var newest *int64
	at := rows.get(id)
	err = c.QueryRow(ctx, s.db.Text(chargeNewest), id, a.intervals[0], a.costs[0], a.capacities[0], at).Scan(&newest, &at)
	if err != nil || newest == nil {
		return unmade, true, err
	}
	rows.set(id, at)
	return *newest, true, nil
}

func (s *Store) chargeTogether(a sumArgs) func(ctx context.Context, c *pgx.Conn) ([]int64, error) {
	return func(ctx context.Context, c *pgx.Conn) (debts []int64, err error) {
		err = c.QueryRow(ctx, s.db.Text("SELECT lk.charge_together_1($1, $2, $3, $4)"), uuids(a.ids), a.intervals, a.costs, a.capacities).Scan(&debts)
		if err == nil && debts != nil && len(debts) != len(a.ids) {
			err = errOddReply
		}
		return debts, err
	}
}

var errOddReply = errors.New("an unexpected reply")
