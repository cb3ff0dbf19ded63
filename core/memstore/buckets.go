package memstore

import (
	"context"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/expiry"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

type bucketKey struct{ limiter, key, bucket string }

// bucketShard holds all buckets of a key, so that one mutex makes a decision atomic.
type bucketShard struct {
	mu      sync.Mutex
	buckets expiry.Table[bucketKey, tokenbucket.Level]
}

func (b *bucketShard) init(limit int) {
	b.buckets = expiry.NewTable[bucketKey, tokenbucket.Level](limit, nil)
}

// TakeTokens implements tokenbucket.Store.
func (s *Store) TakeTokens(ctx context.Context, req tokenbucket.TakeRequest) (tokenbucket.TakeReply, error) {
	if err := s.ready(ctx); err != nil {
		return tokenbucket.TakeReply{}, err
	}
	shard := shardOf(s, s.buckets, req.Key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.take(req, s.now())
}

func (b *bucketShard) take(req tokenbucket.TakeRequest, now int64) (tokenbucket.TakeReply, error) {
	reply := tokenbucket.TakeReply{Allowed: true, Debts: make([]tokenbucket.Span, len(req.Charges))}
	missing := 0
	var only *expiry.Entry[bucketKey, tokenbucket.Level] // of an only charge: it is not looked up twice
	for i := range req.Charges {
		c := &req.Charges[i]
		if e := b.buckets.Get(bucketKey{req.Limiter, req.Key, c.Bucket}, now); e != nil {
			reply.Debts[i] = e.Value.Debt(now, *c)
			if len(req.Charges) == 1 {
				only = e
			}
		} else if c.Cost != (tokenbucket.Span{}) {
			missing++
		}
		if _, ok := c.Charged(reply.Debts[i]); !ok {
			reply.Allowed = false
		}
	}
	if !reply.Allowed {
		return reply, nil
	}
	if missing > 0 && !b.buckets.Room(missing, now) {
		return tokenbucket.TakeReply{}, outage.ErrFull
	}
	for i := range req.Charges {
		c := &req.Charges[i]
		if c.Cost == (tokenbucket.Span{}) {
			continue
		}
		debt, _ := c.Charged(reply.Debts[i])
		reply.Debts[i] = debt
		level := tokenbucket.Level{Empties: tokenbucket.Span{Micros: now + debt.Micros, Frac: debt.Frac}, Den: c.Den}
		expires := level.Empties.Micros
		if debt.Frac > 0 {
			expires++
		}
		key, e := bucketKey{req.Limiter, req.Key, c.Bucket}, only
		if e == nil {
			e = b.buckets.Get(key, now)
		}
		if e != nil {
			e.Value, e.Expires = level, expires
		} else {
			b.buckets.Add(key, level, expires, now)
		}
	}
	return reply, nil
}

// ResetTokens implements tokenbucket.Store.
func (s *Store) ResetTokens(ctx context.Context, limiter, key string, buckets []string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	shard := shardOf(s, s.buckets, key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for _, bucket := range buckets {
		shard.buckets.Remove(bucketKey{limiter, key, bucket})
	}
	return nil
}
