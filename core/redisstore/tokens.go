package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// takeTokens makes a decision: one script call, or a part of a batch. It is retried only if it has
// certainly not run.
func (s *Store) takeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	if len(charges) == 0 {
		return store.TakeReply{Allowed: true}, nil
	}
	d, _ := s.spareDecisions.Get().(*decision)
	if d == nil {
		d = new(decision)
	}
	d.charges, d.keys = charges, s.appendBucketKeys(d.keys[:0], limiter, key, charges)
	n := s.redis.Node(ctx, d.keys[0])
	if err := decisionsOf(n).Do(ctx, d, script.Ordinary); err != nil {
		return store.TakeReply{}, err // the client may still read d
	}
	reply := d.reply
	d.reply, d.charges = store.TakeReply{}, nil
	s.spareDecisions.Put(d)
	return reply, nil
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
	del := script.Command{Operation: opResetTokens}
	_, err := script.Do(ctx, s.redis.Node(ctx, keys[0]), del, func(ctx context.Context) (int64, error) {
		if err := script.Sent(ctx); err != nil {
			return 0, err
		}
		return s.client.Del(ctx, keys...).Result()
	})
	s.denials.remove(limiter, key) // also if the outcome is unknown
	return err
}
