package redisstore

import (
	"context"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

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

func decisionsOf(n *script.Node) *script.Batcher[*decision] {
	return n.Attached.(*script.Batcher[*decision])
}

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
