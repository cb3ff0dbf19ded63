package storetest_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// toy is a store that keeps token buckets and nothing else: the example of a new store.
type toy struct {
	mu   sync.Mutex
	full map[[3]string]time.Time // when buckets are full
}

var _ store.Buckets = (*toy)(nil)

func (s *toy) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	if ctx.Err() != nil {
		return store.TakeReply{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	reply := store.TakeReply{Allowed: true, Debts: store.MakeDebts(len(charges))}
	for i := range charges {
		c := &charges[i]
		debt := c.Debt(s.full[[3]string{limiter, key, c.Bucket}].Sub(now))
		reply.Debts.Set(i, debt)
		reply.Allowed = reply.Allowed && c.Fits(debt)
	}
	if !reply.Allowed {
		return reply, nil
	}
	for i, c := range charges {
		debt := reply.Debts.At(i) + c.Cost
		reply.Debts.Set(i, debt)
		s.full[[3]string{limiter, key, c.Bucket}] = now.Add(debt)
	}
	return reply, nil
}

func (s *toy) ResetTokens(ctx context.Context, limiter, key string, buckets []string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, bucket := range buckets {
		delete(s.full, [3]string{limiter, key, bucket})
	}
	return nil
}

// A store that can do one thing proves it. The tests of what it lacks, such as Close, are skipped.
func TestBucketsOfAToy(t *testing.T) {
	storetest.Buckets(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*toy])) {
		synctest.Test(t, func(t *testing.T) {
			test(t, storetest.Harness[*toy]{Store: &toy{full: map[[3]string]time.Time{}}, Advance: time.Sleep})
		})
	})
}
