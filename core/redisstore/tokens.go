package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// TakeTokens implements store.Buckets: one script call, or a part of a batch, or none for a denial
// from the cache. It is retried only if it has certainly not run.
func (s *Store) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	if s.hooks.Begun() {
		return store.TakeReply{}, store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return store.TakeReply{}, err
	}
	denial, q, denied := s.denials.lookup(limiter, key, charges)
	if denied {
		return denial, nil
	}
	reply, err := s.takeTokens(ctx, limiter, key, charges)
	if err == nil {
		q.store(limiter, key, charges, &reply)
	}
	return reply, err
}

// takeTokens makes a decision in a call of its own, or in a batch if enough calls are in flight.
func (s *Store) takeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	var few [1]string
	keys, n := few[:0], s.nodes.whole
	tag := s.tagged(limiter, key)
	for i := range charges {
		keys = append(keys, tag.key(charges[i].Bucket))
	}
	if len(keys) > 0 {
		n = s.nodes.of(ctx, keys[0])
		if l := n.decisions; l != nil {
			if !l.begin() {
				return s.takeTogether(ctx, n, charges, keys)
			}
			defer l.end()
		}
	}
	return s.takeAlone(ctx, n, charges, slices.Clone(keys))
}

// takeAlone makes a decision in a call of its own.
func (s *Store) takeAlone(ctx context.Context, n *node, charges []store.Charge, keys []string) (store.TakeReply, error) {
	args := appendPlan(append(make([]any, 0, 2+2*len(charges)), 1), charges)
	return call(ctx, n, opTakeTokens, ordinary, func(ctx context.Context) (store.TakeReply, error) {
		reply, err := s.eval(ctx, true, takeTokens, keys, args...)
		if err != nil {
			return store.TakeReply{}, err
		}
		s.nodes.recordMap()
		replies, err := readDecisions(reply, 1)
		if err != nil {
			return store.TakeReply{}, err
		}
		return readDecision(replies[0], len(keys))
	})
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
		return nil, errOddReply
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
			return store.TakeReply{}, errOddReply
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
			return store.TakeReply{}, explain(scriptError(text), false)
		}
	}
	return store.TakeReply{}, errOddReply
}

// readDebts reads the long form: whether it is allowed, and each debt in microseconds and remaining
// nanoseconds.
func readDebts(reply []any, charges int) (store.TakeReply, error) {
	r := &reader{left: reply}
	take := store.TakeReply{Allowed: r.number() == 1, Debts: store.MakeDebts(charges)}
	for i := range charges {
		take.Debts.Set(i, r.micros()+time.Duration(r.number()))
	}
	if r.err != nil || len(r.left) > 0 {
		return store.TakeReply{}, errOddReply
	}
	return take, nil
}

// scriptError is the error of one of the decisions of a call.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError marks it as a reply of the server for go-redis.
func (scriptError) RedisError() {}

var _ redis.Error = scriptError("")

// ResetTokens implements store.Buckets.
func (s *Store) ResetTokens(ctx context.Context, limiter, key string, buckets []string) error {
	tag := s.tagged(limiter, key)
	keys := make([]string, len(buckets))
	for i, bucket := range buckets {
		keys[i] = tag.key(bucket)
	}
	if len(keys) == 0 {
		return nil
	}
	_, err := call(ctx, s.nodes.of(ctx, keys[0]), opResetTokens, ordinary, func(ctx context.Context) (int64, error) {
		if err := wireOf(ctx).write(); err != nil {
			return 0, err
		}
		return s.client.Del(ctx, keys...).Result()
	})
	s.denials.remove(limiter, key) // also if the outcome is unknown
	return err
}
