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
	buckets map[toyName]*toyBucket
}

type toyName struct{ limiter, key, bucket string }

type toyBucket struct {
	full     time.Time     // when the bucket is
	interval time.Duration // of the last charge, or ofCalendar
	used     time.Duration // of a calendar
	held     time.Time     // when the hold ends
}

const ofCalendar = -1

var _ store.Buckets = (*toy)(nil)

// bucket returns that of a charge.
func (s *toy) bucket(r *store.TokenRequest, c *store.Charge) *toyBucket {
	name := toyName{r.Limiter, r.Key, c.Bucket}
	b := s.buckets[name]
	if b == nil {
		b = &toyBucket{}
		s.buckets[name] = b
	}
	return b
}

func (b *toyBucket) debt(c *store.Charge) time.Duration {
	if c.Period != nil {
		debt, _ := b.period(c)
		return debt
	}
	left := time.Until(b.full)
	if b.interval != 0 && b.interval != c.Interval {
		return c.Convert(max(left, 0), b.interval)
	}
	return c.Debt(left)
}

// period returns the debt of a bucket of a calendar, and for how long its period lasts.
func (b *toyBucket) period(c *store.Charge) (debt, lasts time.Duration) {
	used := b.used
	if b.interval != ofCalendar {
		used = 0
	}
	return c.Used(used, time.Until(b.full), time.Now())
}

func (b *toyBucket) owe(debt time.Duration, c *store.Charge) {
	if c.Period != nil {
		_, lasts := b.period(c)
		b.full, b.interval, b.used = time.Now().Add(lasts), ofCalendar, debt
		return
	}
	b.full, b.interval = time.Now().Add(debt), c.Interval
}

func (s *toy) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	if ctx.Err() != nil {
		return store.TakeReply{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var (
		reply = store.TakeReply{Allowed: true, Taken: r.AtMost}
		debts []time.Duration
		costs = map[*toyBucket]time.Duration{}
		all   = append([]store.TokenRequest{r}, more...)
	)
	for _, r := range all {
		for i := range r.Charges {
			c := &r.Charges[i]
			b := s.bucket(&r, c)
			room, held := c.Capacity-b.debt(c)-costs[b], max(time.Until(b.held), 0)
			reply.Held = max(reply.Held, held)
			if c.Cost > 0 {
				reply.Allowed = reply.Allowed && c.Cost <= room && held == 0
				reply.Taken = min(reply.Taken, int64(max(room, 0)/c.Cost))
				costs[b] += c.Cost
			}
		}
	}
	if !reply.Allowed {
		reply.Taken = 0
	}
	for _, read := range []bool{false, true} {
		for _, r := range all {
			for i := range r.Charges {
				c := &r.Charges[i]
				switch b := s.bucket(&r, c); {
				case read:
					debts = append(debts, b.debt(c))
				case reply.Allowed && c.Cost > 0:
					b.owe(b.debt(c)+c.Cost*time.Duration(max(reply.Taken, 1)), c)
				}
			}
		}
	}
	reply.Debts = debtsOf(debts)
	n := 0
	for _, r := range all {
		for i := range r.Charges {
			s.setEnd(&reply.Debts, n, len(debts), &r, &r.Charges[i])
			n++
		}
	}
	return reply, nil
}

// setEnd sets the end of the period of a charge, the nth of all.
func (s *toy) setEnd(debts *store.Debts, n, all int, r *store.TokenRequest, c *store.Charge) {
	if c.Period != nil {
		_, lasts := s.bucket(r, c).period(c)
		debts.SetEnd(n, all, lasts)
	}
}

func debtsOf(debts []time.Duration) store.Debts {
	made := store.MakeDebts(len(debts))
	for i, debt := range debts {
		made.Set(i, debt)
	}
	return made
}

func (s *toy) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	if ctx.Err() != nil {
		return store.TakeReply{}, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reply := store.TakeReply{Allowed: true, Debts: store.MakeDebts(len(r.Charges))}
	for i := range r.Charges {
		c := &r.Charges[i]
		b := s.bucket(&r, c)
		debt := b.debt(c)
		if most := c.Capacity + c.Overdraft; c.Cost != 0 {
			debt = max(min(debt, most)+c.Cost, 0)
			reply.Allowed = reply.Allowed && debt <= most
			debt = min(debt, most)
			b.owe(debt, c)
		}
		reply.Debts.Set(i, debt)
		s.setEnd(&reply.Debts, i, len(r.Charges), &r, c)
		reply.Held = max(reply.Held, time.Until(b.held))
	}
	return reply, nil
}

func (s *toy) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	end := time.Now().Add(d)
	for i := range r.Charges {
		if b := s.bucket(&r, &r.Charges[i]); end.After(b.held) {
			b.held = end
		}
	}
	return nil
}

func (s *toy) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range r.Charges {
		delete(s.buckets, toyName{r.Limiter, r.Key, c.Bucket})
	}
	return nil
}

// A store that can do one thing proves it. The tests of what it lacks, such as Close, are skipped.
func TestBucketsOfAToy(t *testing.T) {
	storetest.Buckets(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*toy])) {
		synctest.Test(t, func(t *testing.T) {
			test(t, storetest.Harness[*toy]{Store: &toy{buckets: map[toyName]*toyBucket{}}, Advance: time.Sleep})
		})
	})
}
