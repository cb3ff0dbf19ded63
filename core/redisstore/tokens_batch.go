package redisstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// maxBuckets bounds the work of one call, all its decisions together, to a fraction of a
// millisecond, since other clients of the server wait for it. Each bucket takes a server 2 to 5 µs.
const maxBuckets = 128

// newDecisions returns the batcher of a node's decisions.
func (s *Store) newDecisions(n *script.Node) *batch.Batcher[*decision] {
	send := sendDecisions
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		send = sendDecisionsByPartition
	}
	return script.NewBatcher(n, maxBuckets, func(ctx context.Context, batch []*decision) bool { return send(ctx, n, batch) })
}

// sendDecisions makes the decisions of a batch in one call of the script.
func sendDecisions(ctx context.Context, n *script.Node, batch []*decision) (replied bool) {
	keys, args := batchArgs(batch)
	replies, err := script.EvalOnce(ctx, n, opTakeTokens, urgencyOf(batch), takeTokens.Call(keys, args...),
		func(reply any) ([]any, error) { return readDecisions(reply, len(batch)) })
	setReplies(ctx, n, batch, replies, err)
	return err == nil
}

// sendDecisionsByPartition makes the decisions of a batch in one pipeline with a call for each
// partition: in a Cluster, a script has keys of one slot only. A call that fails fails the
// decisions of its partition alone. While a slot moves, its keys may be on two nodes: the decisions
// of its partition are then made one by one.
func sendDecisionsByPartition(ctx context.Context, n *script.Node, batch []*decision) (replied bool) {
	if len(batch) == 1 {
		return sendDecisions(ctx, n, batch)
	}
	slices.SortStableFunc(batch, func(a, b *decision) int { return int(a.partition) - int(b.partition) })
	parts := make([][]*decision, 0, min(len(batch), partitions))
	for rest := batch; len(rest) > 0; {
		size := 1
		for size < len(rest) && rest[size].partition == rest[0].partition {
			size++
		}
		parts, rest = append(parts, rest[:size]), rest[size:]
	}
	replied, torn := sendEach(ctx, n, parts)
	if len(torn) > 0 {
		sendEach(ctx, n, slices.Collect(slices.Chunk(torn, 1)))
	}
	return replied
}

// sendEach makes decisions in one pipeline with a call for each part. It returns the decisions of
// parts with keys on two nodes, which have not been made.
func sendEach(ctx context.Context, n *script.Node, parts [][]*decision) (replied bool, torn []*decision) {
	var (
		calls = make([]script.Call, len(parts))
		keys  = make([]string, 0, 2*len(parts))
		u     = script.Reading
		args  = make([]any, 0, (3+argsOfCharge)*len(parts)) // more than enough for most
	)
	for i, part := range parts {
		firstKey, firstArg := len(keys), len(args)
		keys, args = appendBatchArgs(keys, args, part)
		u = min(u, urgencyOf(part))
		calls[i] = takeTokens.Call(slices.Clip(keys[firstKey:]), slices.Clip(args[firstArg:])...)
		calls[i].Divisible = len(part) > 1
	}
	results, err := script.EvalEachOnce(ctx, n, opTakeTokens, u, calls)
	for i, part := range parts {
		var replies []any
		failed := err
		if results != nil {
			if failed = results[i].Err; failed == nil {
				replies, failed = readDecisions(results[i].Reply, len(part))
			} else if calls[i].Divisible && script.IsTorn(failed) {
				torn, replied = append(torn, part...), true
				continue
			}
		}
		setReplies(ctx, n, part, replies, failed)
		replied = replied || failed == nil
	}
	return replied, torn
}

// setReplies gives each decision of a batch its reply, or the error.
func setReplies(ctx context.Context, n *script.Node, batch []*decision, replies []any, err error) {
	for i, d := range batch {
		failed := err
		if err == nil {
			d.reply, failed = readDecision(replies[i], len(d.keys))
			failed = n.Failed(ctx, failed)
		}
		d.Finish(failed)
	}
}

// batchArgs returns the keys and the arguments of the script for a batch.
func batchArgs(batch []*decision) (keys []string, args []any) {
	n := 0
	for _, d := range batch {
		n += len(d.keys)
	}
	keys, args = make([]string, 0, n), make([]any, 0, 3+argsOfCharge*len(batch[0].keys)) // enough for one plan
	return appendBatchArgs(keys, args, batch)
}

// appendBatchArgs appends the keys and the arguments of the script for a batch: copies, since hooks
// of the client may keep the command for longer than the call. Decisions with the same charges
// share a plan.
func appendBatchArgs(keys []string, args []any, batch []*decision) ([]string, []any) {
	var (
		first   = len(args)
		plans   = make([]*decision, 0, 8) // the first of each
		numbers = make([]int, 0, maxBuckets)
	)
	args = append(args, 0)
	for _, d := range batch {
		keys = append(keys, d.keys...)
		n := slices.IndexFunc(plans, d.hasPlanOf)
		if n < 0 {
			n = len(plans)
			plans = append(plans, d)
			args = d.appendPlan(args)
		}
		numbers = append(numbers, n+1)
	}
	args[first] = len(plans)
	if len(plans) > 1 {
		for _, n := range numbers {
			args = append(args, n)
		}
	}
	return keys, args
}

// hasPlanOf reports whether two decisions have the same plan.
func (d *decision) hasPlanOf(other *decision) bool {
	return d.times == other.times && slices.EqualFunc(d.charges, other.charges, func(a, b []store.Charge) bool {
		return len(a) == len(b) && (&a[0] == &b[0] || a[0].Cost == b[0].Cost && slices.Equal(a, b))
	})
}

// argsOfCharge is the number of arguments for a charge.
const argsOfCharge = 5

// appendPlan appends the arguments for a decision.
func (d *decision) appendPlan(args []any) []any {
	args = append(args, d.times, len(d.keys))
	for _, charges := range d.charges {
		for i := range charges {
			c := &charges[i] // immutable, and a pointer in an interface does not allocate
			var fresh any = 0
			switch {
			case c.Period != nil:
				fresh = periodText(c.Period)
			case c.Fresh:
				fresh = 1
			}
			args = append(args, (*int64)(&c.Cost), (*int64)(&c.Capacity), (*int64)(&c.Overdraft), (*int64)(&c.Interval), fresh)
		}
	}
	return args
}

func periodText(p *store.Period) string {
	return fmt.Sprint(p.Begin.UnixMicro(), p.End.UnixMicro(), p.Next.UnixMicro())
}

// readDecisions splits the script's reply into one for each decision.
func readDecisions(reply any, decisions int) ([]any, error) {
	replies, ok := reply.([]any)
	if !ok && decisions == 1 { // the short form of a list
		return []any{reply}, nil
	}
	if !ok || len(replies) != decisions {
		return nil, script.ErrOddReply
	}
	return replies, nil
}

// readDecision reads the reply of one decision. Its short form is the debts, of which the first is
// -1 less the debt after a denial.
func readDecision(reply any, charges int) (store.TakeReply, error) {
	list, ok := reply.([]any)
	if !ok && charges == 1 {
		return readShortDecision([]any{reply})
	}
	if len(list) == 1 {
		if text, ok := list[0].(string); ok {
			return store.TakeReply{}, scriptError(text)
		}
	}
	if len(list) == charges && charges > 1 {
		return readShortDecision(list)
	}
	return readLongDecision(list, charges)
}

func readShortDecision(debts []any) (store.TakeReply, error) {
	r := &script.Reader{Left: debts}
	take := store.TakeReply{Allowed: true, Taken: 1, Debts: store.MakeDebts(len(debts))}
	for i := range debts {
		debt := r.Number()
		if i == 0 && debt < 0 {
			take.Allowed, take.Taken, debt = false, 0, -1-debt
		}
		take.Debts.Set(i, time.Duration(debt))
	}
	if r.Err != nil {
		return store.TakeReply{}, script.ErrOddReply
	}
	return take, nil
}

// readLongDecision reads the long form:
//   - how often it was charged;
//   - for how many microseconds the buckets are held;
//   - each debt, in microseconds and remaining nanoseconds;
//   - if a bucket is of a calendar, for how many microseconds the period of each lasts.
func readLongDecision(reply []any, charges int) (store.TakeReply, error) {
	r := &script.Reader{Left: reply}
	take := store.TakeReply{Taken: r.Number(), Held: r.Micros(), Debts: store.MakeDebts(charges)}
	take.Allowed = take.Taken > 0
	for i := range charges {
		take.Debts.Set(i, r.Micros()+time.Duration(r.Number()))
	}
	if len(r.Left) > 0 {
		for i := range charges {
			take.Debts.SetEnd(i, charges, r.Micros())
		}
	}
	if r.Err != nil || len(r.Left) > 0 {
		return store.TakeReply{}, script.ErrOddReply
	}
	return take, nil
}

// scriptError is the error of one of the decisions of a call.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError marks it as a reply of the server for go-redis.
func (scriptError) RedisError() {}

var _ redis.Error = scriptError("")
