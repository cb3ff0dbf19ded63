package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// maxDecisions bounds the work of one call to a fraction of a millisecond, since other clients of
// the server wait for it. A decision about one bucket takes a server 2 to 5 µs and counts one; with
// several buckets, each counts two.
const maxDecisions = 128

// newDecisions returns the batcher of a node's decisions.
func (s *Store) newDecisions(n *script.Node) *script.Batcher[*decision] {
	send := sendDecisions
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		send = sendDecisionsByKey
	}
	return script.NewBatcher(n, maxDecisions, func(ctx context.Context, batch []*decision) bool { return send(ctx, n, batch) })
}

// sendDecisions makes the decisions of a batch in one call of the script.
func sendDecisions(ctx context.Context, n *script.Node, batch []*decision) (replied bool) {
	keys, args := batchArgs(batch)
	replies, err := script.EvalOnce(ctx, n, opTakeTokens, takeTokens.Call(keys, args...),
		func(reply any) ([]any, error) { return readDecisions(reply, len(batch)) })
	setReplies(ctx, n, batch, replies, err)
	return err == nil
}

// sendDecisionsByKey makes the decisions of a batch in one pipeline with a call for each key: in a
// Cluster, a script has keys of one slot only. A call that fails fails the decisions of its key
// alone.
func sendDecisionsByKey(ctx context.Context, n *script.Node, batch []*decision) (replied bool) {
	if len(batch) == 1 {
		return sendDecisions(ctx, n, batch)
	}
	batches := byKey(batch)
	calls := make([]script.Call, len(batches))
	for i, b := range batches {
		keys, args := batchArgs(b)
		calls[i] = takeTokens.Call(keys, args...)
	}
	results, err := script.EvalEachOnce(ctx, n, opTakeTokens, calls)
	for i, b := range batches {
		var replies []any
		failed := err
		if results != nil {
			if failed = results[i].Err; failed == nil {
				replies, failed = readDecisions(results[i].Reply, len(b))
			}
		}
		setReplies(ctx, n, b, replies, failed)
		replied = replied || failed == nil
	}
	return replied
}

// byKey splits a batch into one for each key.
func byKey(batch []*decision) [][]*decision {
	var batches [][]*decision
	at := make(map[string]int, len(batch))
	for _, d := range batch {
		i, known := at[d.keys[0]]
		if !known {
			i = len(batches)
			at[d.keys[0]] = i
			batches = append(batches, nil)
		}
		batches[i] = append(batches[i], d)
	}
	return batches
}

// setReplies gives each decision of a batch its reply, or the error.
func setReplies(ctx context.Context, n *script.Node, batch []*decision, replies []any, err error) {
	for i, d := range batch {
		failed := err
		if err == nil {
			d.reply, failed = readDecision(replies[i], len(d.keys))
			n.LogFault(ctx, failed)
		}
		d.Finish(failed)
	}
}

// batchArgs returns the keys and the arguments of the script for a batch. Decisions whose charges
// are the same slice, as those of a limiter are, share a plan.
func batchArgs(batch []*decision) (keys []string, args []any) {
	if len(batch) == 1 {
		d := batch[0]
		// A copy, since hooks of the client may keep the command for longer than the call.
		return slices.Clone(d.keys), appendPlan(append(make([]any, 0, 2+2*len(d.charges)), 1), d.charges)
	}
	type plan struct {
		charges *store.Charge
		n       int
	}
	plans := make(map[plan]int)
	args = append(args, 0)
	numbers := make([]any, len(batch))
	for i, d := range batch {
		keys = append(keys, d.keys...)
		p := plan{&d.charges[0], len(d.charges)}
		if plans[p] == 0 {
			plans[p] = len(plans) + 1
			args = appendPlan(args, d.charges)
		}
		numbers[i] = plans[p]
	}
	args[0] = len(plans)
	if len(plans) > 1 {
		args = append(args, numbers...)
	}
	return keys, args
}

// appendPlan appends the arguments for the charges of a decision: their number, and the nanoseconds
// of each.
func appendPlan(args []any, charges []store.Charge) []any {
	args = append(args, len(charges))
	for i := range charges {
		c := &charges[i] // immutable, and a pointer in an interface does not allocate
		args = append(args, (*int64)(&c.Cost), (*int64)(&c.Capacity))
	}
	return args
}

// readDecisions splits the script's reply into one for each decision.
func readDecisions(reply any, decisions int) ([]any, error) {
	replies, ok := reply.([]any)
	if !ok || len(replies) != decisions {
		return nil, script.ErrOddReply
	}
	return replies, nil
}

// readDecision reads one of those replies. Its short form is a debt, or -1 less the debt of a
// denial.
func readDecision(reply any, charges int) (store.TakeReply, error) {
	switch r := reply.(type) {
	case int64:
		switch {
		case charges != 1:
			return store.TakeReply{}, script.ErrOddReply
		case r < 0:
			return store.TakeReply{Debts: store.OneDebt(time.Duration(-1 - r))}, nil
		default:
			return store.TakeReply{Allowed: true, Debts: store.OneDebt(time.Duration(r))}, nil
		}
	case []any:
		if len(r) != 1 {
			return readDebts(r, charges)
		}
		if text, ok := r[0].(string); ok {
			return store.TakeReply{}, redisfault.Explain(scriptError(text), false)
		}
	}
	return store.TakeReply{}, script.ErrOddReply
}

// readDebts reads the long form: whether it is allowed, and each debt in microseconds and remaining
// nanoseconds.
func readDebts(reply []any, charges int) (store.TakeReply, error) {
	r := &script.Reader{Left: reply}
	take := store.TakeReply{Allowed: r.Number() == 1, Debts: store.MakeDebts(charges)}
	for i := range charges {
		take.Debts.Set(i, r.Micros()+time.Duration(r.Number()))
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
