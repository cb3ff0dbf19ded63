package redisstore

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// decision is a decision, or a settlement, that may be batched with others.
type decision struct {
	batch.Queued
	times   int64            // how often the costs are charged at most; or settles
	charges [][]store.Charge // of each request
	keys    []string         // of the charges' buckets
	reply   store.TakeReply

	partition uint8 // of all keys
}

// settles is the times of a settlement.
const settles = 0

// Work implements batch.Request.
func (d *decision) Work() int { return len(d.keys) }

// urgency returns script.Reading for a decision without costs, which changes nothing.
func (d *decision) urgency() script.Urgency {
	for _, charges := range d.charges {
		if slices.ContainsFunc(charges, func(c store.Charge) bool { return c.Cost != 0 }) {
			return script.Ordinary
		}
	}
	return script.Reading
}

// urgencyOf returns the urgency of a call with all of these decisions.
func urgencyOf(batch []*decision) script.Urgency {
	u := script.Reading
	for _, d := range batch {
		u = min(u, d.urgency())
	}
	return u
}

func decisionsOf(n *script.Node) *batch.Batcher[*decision] {
	return n.Attached.(*batch.Batcher[*decision])
}

// TakeTokens implements store.Buckets: one script call, or a part of a batch, or no call for a
// denial from the cache, which has denials of single requests.
func (s *Store) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	if err := s.begins(ctx); err != nil {
		return store.TakeReply{}, err
	}
	times := max(r.AtMost, 1)
	if len(more) > 0 {
		if err := s.oneSlot(&r, more); err != nil {
			return store.TakeReply{}, err
		}
		return s.takeTokens(ctx, times, &r, more)
	}
	return s.denials.Around(&r, func(bool) (store.TakeReply, error) {
		return s.takeTokens(ctx, times, &r, nil)
	})
}

// takeTokens makes a decision: one script call, or a part of a batch. It is retried only if it has
// certainly not run.
func (s *Store) takeTokens(ctx context.Context, times int64, r *store.TokenRequest, more []store.TokenRequest) (store.TakeReply, error) {
	d, _ := s.spareDecisions.Get().(*decision)
	if d == nil {
		d = new(decision)
	}
	d.times = times
	s.ask(d, r)
	for i := range more {
		s.ask(d, &more[i])
	}
	if len(d.keys) > 0 {
		n := s.redis.Node(ctx, d.keys[0])
		if err := decisionsOf(n).Do(ctx, d, d.urgency()); err != nil {
			return store.TakeReply{}, err // the client may still read d
		}
	} else {
		d.reply = store.TakeReply{Allowed: true, Taken: times}
	}
	reply := d.reply
	if r.AtMost == 0 {
		reply.Taken = 0
	}
	clear(d.charges)
	d.reply, d.charges, d.keys = store.TakeReply{}, d.charges[:0], d.keys[:0]
	s.spareDecisions.Put(d)
	return reply, nil
}

// ask adds a request to a decision.
func (s *Store) ask(d *decision, r *store.TokenRequest) {
	if len(r.Charges) > 0 {
		d.charges = append(d.charges, r.Charges)
		tag := s.tagged(r)
		d.keys, d.partition = tag.appendKeys(d.keys, r), tag.partition
	}
}

// oneSlot returns an error if a Cluster may keep the buckets of several requests in several slots.
// It compares homes: their slots may be the same by chance, and the result must not depend on that.
func (s *Store) oneSlot(r *store.TokenRequest, more []store.TokenRequest) error {
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		for i := range more {
			if more[i].InHome() != r.InHome() {
				return store.ErrManySlots
			}
		}
	}
	return nil
}

// SettleTokens implements store.Buckets: one script call, or a part of a batch, also after
// Shutdown.
func (s *Store) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	r.AtMost = 0
	reply, err := s.takeTokens(ctx, settles, &r, nil)
	s.denials.Settled(&r) // also if the outcome is unknown
	return reply, err
}

// begins returns the reason not to begin a call, or nil.
func (s *Store) begins(ctx context.Context) error {
	if s.hooks.Begun() {
		return store.ErrClosed
	}
	return ctx.Err()
}

// HoldTokens implements store.Buckets: one script call, which may be sent twice. A hold ends by the
// server's clock: if that steps back, the hold begins again at the next request that meets it.
func (s *Store) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	if err := s.begins(ctx); err != nil || d <= 0 || len(r.Charges) == 0 {
		return err
	}
	hold := script.Step{Call: holdTokens.Call(s.appendBucketKeys(nil, &r), holdArgs(r.Charges, d)...), Operation: opHoldTokens}
	_, err := script.Run(ctx, s.redis, hold, func(r script.Reply) (int, error) { return script.Int(r.Value) })
	s.denials.Remove(r.Limiter, r.Key) // so that the next denial reports the hold
	return err
}

// longestHold is the longest hold that scripts/lib/bucket.lua accepts, in µs.
const longestHold = 9e15

func holdArgs(charges []store.Charge, d time.Duration) []any {
	args := []any{int64(min((d-1)/time.Microsecond+1, longestHold))}
	for i := range charges {
		if charges[i].Period != nil {
			args = append(args, "@0")
		} else {
			args = append(args, int64(charges[i].Interval))
		}
	}
	return args
}

// ResetTokens implements store.Buckets.
func (s *Store) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	keys := s.appendBucketKeys(nil, &r)
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
	s.denials.Remove(r.Limiter, r.Key) // also if the outcome is unknown
	return err
}
