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
	mu      sync.Mutex
	buckets map[[3]string]store.Level
}

var _ store.Buckets = (*toy)(nil)

func (s *toy) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	if ctx.Err() != nil {
		return store.TakeReply{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixMicro()
	reply := store.TakeReply{Allowed: true, Debts: store.MakeDebts(len(charges))}
	for i := range charges {
		c := &charges[i]
		debt := s.buckets[[3]string{limiter, key, c.Bucket}].Debt(now, c)
		reply.Debts.Set(i, debt)
		_, fits := c.Charged(debt)
		reply.Allowed = reply.Allowed && fits
	}
	if !reply.Allowed {
		return reply, nil
	}
	for i := range charges {
		c := &charges[i]
		debt, _ := c.Charged(reply.Debts.At(i))
		reply.Debts.Set(i, debt)
		debt.Micros += now
		s.buckets[[3]string{limiter, key, c.Bucket}] = store.Level{Empties: debt, Den: c.Den}
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
		delete(s.buckets, [3]string{limiter, key, bucket})
	}
	return nil
}

// A store that can do one thing proves it. The tests of what it lacks, such as Close, are skipped.
func TestBucketsOfAToy(t *testing.T) {
	storetest.Buckets(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*toy])) {
		synctest.Test(t, func(t *testing.T) {
			test(t, storetest.Harness[*toy]{Store: &toy{buckets: map[[3]string]store.Level{}}, Advance: time.Sleep})
		})
	})
}
