package redisstore

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// maxDecisions bounds the work of one call to a fraction of a millisecond, since other clients of
// the server wait for it. A decision about one bucket takes a server 2 to 5 µs and counts one; with
// several buckets, each counts two.
const maxDecisions = 128

// decision is a decision that may be batched with others.
type decision struct {
	script.Queued
	charges []store.Charge
	keys    []string // of the charges' buckets
	reply   store.TakeReply
}

// Work implements script.Request.
func (d *decision) Work() int {
	if len(d.keys) == 1 {
		return 1
	}
	return 2 * len(d.keys)
}

// newDecisions returns the batcher of a node's decisions.
func (s *Store) newDecisions(n *script.Node) *script.Batcher[*decision] {
	send := sendDecisions
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		send = sendDecisionsByKey
	}
	return script.NewBatcher(n, maxDecisions, func(ctx context.Context, batch []*decision) bool { return send(ctx, n, batch) })
}

func decisionsOf(n *script.Node) *script.Batcher[*decision] {
	return n.Attached.(*script.Batcher[*decision])
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
		d.Fail(failed)
	}
}

// batchArgs returns the keys and the arguments of the script for a batch. Decisions whose charges
// are the same slice, as those of a limiter are, share a plan.
func batchArgs(batch []*decision) (keys []string, args []any) {
	if len(batch) == 1 {
		d := batch[0]
		return d.keys, appendPlan(append(make([]any, 0, 2+2*len(d.charges)), 1), d.charges)
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
