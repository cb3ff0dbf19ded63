package redisstore

import (
	"context"
	"slices"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// TakeTokens implements store.Buckets: one script call, or a part of one that others have too, or none
// for a key that was denied the same lately. It is sent again only on proof that it has not run.
func (s *Store) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	if s.hooks.Begun() {
		return store.TakeReply{}, store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return store.TakeReply{}, err
	}
	denial, q, denied := s.denials.recall(limiter, key, charges)
	if denied {
		return denial, nil
	}
	reply, err := s.takeTokens(ctx, limiter, key, charges)
	if err == nil {
		q.remember(limiter, key, charges, &reply)
	}
	return reply, err
}

func (s *Store) takeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	var few [1]string
	keys, n := few[:0], s.nodes.whole
	tag := s.tagged(limiter, key)
	for i := range charges {
		keys = append(keys, tag.key(charges[i].Bucket))
	}
	if len(keys) > 0 {
		n = s.nodes.of(ctx, keys[0])
		if l := n.charges; l != nil {
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
	args := appendCharges(append(make([]any, 0, 2+5*len(charges)), 1, len(charges)), charges) // one plan
	return call(ctx, n, opTakeTokens, ordinary, func(ctx context.Context) (store.TakeReply, error) {
		reply, err := s.eval(ctx, true, takeTokens, keys, args...)
		if err != nil {
			return store.TakeReply{}, err
		}
		s.nodes.know()
		replies, err := readMany(reply, 1)
		if err != nil {
			return store.TakeReply{}, err
		}
		return readOneOfMany(replies[0], len(keys))
	})
}

func appendCharges(args []any, charges []store.Charge) []any {
	for i := range charges {
		c := &charges[i] // nobody changes it, and pointers cost no memory
		args = append(args, &c.Cost.Micros, &c.Cost.Frac, &c.Capacity.Micros, &c.Capacity.Frac, &c.Den)
	}
	return args
}

func readTakeReply(reply any, charges int) (store.TakeReply, error) {
	fields, ok := reply.([]any)
	if !ok || len(fields) != 1+2*charges {
		return store.TakeReply{}, errOddReply
	}
	var numbers []int64
	for _, f := range fields {
		n, ok := f.(int64)
		if !ok {
			return store.TakeReply{}, errOddReply
		}
		numbers = append(numbers, n)
	}
	take := store.TakeReply{Allowed: numbers[0] == 1, Debts: store.MakeDebts(charges)}
	for i := range charges {
		take.Debts.Set(i, store.Span{Micros: numbers[1+2*i], Frac: numbers[2+2*i]})
	}
	return take, nil
}

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
	s.denials.forget(limiter, key) // also if nobody knows whether it was reset
	return err
}
