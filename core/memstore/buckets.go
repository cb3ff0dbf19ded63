package memstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// buckets are all token buckets of a store.
type buckets struct {
	seed   maphash.Seed
	spaces spaces
	shards []bucketShard
	refuse bool // a new key, rather than evict a bucket
}

// bucketShard has all buckets of a key, so that one mutex makes a decision atomic. It is a pair of
// cache lines, as processors fetch them: all that a decision needs of it is in the first.
type bucketShard struct {
	mu    sync.Mutex
	table bucketTable
	limit int
	_     [64]byte
}

// init makes a place for so many buckets. Shards spread the contention of many keys; a small store
// has few, so that its bound is not reached by one of them long before the others.
func (b *buckets) init(limit int, refuse bool) {
	b.seed, b.refuse = maphash.MakeSeed(), refuse
	b.shards = make([]bucketShard, min(max(limit/1024, 1), 256))
	for i := range b.shards {
		b.shards[i].limit = (limit + len(b.shards) - 1) / len(b.shards)
	}
}

// shardOf returns the shard of a key, and the key's hash within it.
func (b *buckets) shardOf(key string) (*bucketShard, uint32) {
	hash := maphash.String(b.seed, key)
	return &b.shards[uint64(uint32(hash))*uint64(len(b.shards))>>32], uint32(hash >> 32)
}

// TakeTokens implements store.Buckets. Most requests have an only charge, for which it looks once,
// here and without a defer: this is the hot path.
func (s *Store) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (reply store.TakeReply, err error) {
	if err := s.acceptsNew(ctx); err != nil {
		return reply, err
	}
	now, b := time.Since(s.start), &s.buckets
	if len(charges) != 1 {
		return b.takeAll(limiter, key, charges, now)
	}
	c := &charges[0]
	shard, hash := b.shardOf(key)
	id, hash, err := b.identify(limiter, key, c.Bucket, hash)
	if err != nil {
		return reply, err
	}
	shard.mu.Lock()
	var debt time.Duration
	i, found := shard.table.find(id, hash)
	if found {
		debt = c.Debt(shard.table.slots[i].full - now)
	}
	ok := c.Fits(debt)
	switch {
	case !ok || c.Cost == 0:
	case found:
		debt += c.Cost
		shard.table.slots[i].full = now + debt
	case b.makeRoom(shard, 1, key, now):
		debt += c.Cost
		id.key = strings.Clone(key) // a key cut out of a request would keep all of its text in memory
		shard.table.add(id, hash, now+debt, now)
	default:
		shard.mu.Unlock()
		return reply, store.ErrFull
	}
	shard.mu.Unlock()
	reply.Allowed, reply.Debts = ok, store.OneDebt(debt)
	return reply, nil
}

// takeAll makes several charges, or none: it reads all buckets before it writes any.
func (b *buckets) takeAll(limiter, key string, charges []store.Charge, now time.Duration) (reply store.TakeReply, err error) {
	shard, hash := b.shardOf(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	allowed, debts, missing := true, store.MakeDebts(len(charges)), 0
	for n := range charges {
		c := &charges[n]
		id, hash, err := b.identify(limiter, key, c.Bucket, hash)
		if err != nil {
			return reply, err
		}
		var debt time.Duration
		if i, found := shard.table.find(id, hash); found {
			debt = c.Debt(shard.table.slots[i].full - now)
		} else if c.Cost > 0 {
			missing++
		}
		allowed = allowed && c.Fits(debt)
		debts.Set(n, debt)
	}
	if !allowed {
		reply.Debts = debts
		return reply, nil
	}
	if missing > 0 && !b.makeRoom(shard, missing, key, now) {
		return reply, store.ErrFull
	}
	if missing > 0 {
		key = strings.Clone(key)
	}
	for n := range charges {
		c := &charges[n]
		if c.Cost == 0 {
			continue
		}
		debt := debts.At(n) + c.Cost
		debts.Set(n, debt)
		id, hash, err := b.identify(limiter, key, c.Bucket, hash)
		if err != nil {
			return reply, err
		}
		if i, found := shard.table.find(id, hash); found {
			shard.table.slots[i].full = now + debt
		} else {
			shard.table.add(id, hash, now+debt, now)
		}
	}
	reply.Allowed, reply.Debts = true, debts
	return reply, nil
}

// identify returns what a bucket of a key with this hash is called in the table, and its hash
// there.
func (b *buckets) identify(limiter, key, bucket string, hash uint32) (bucketID, uint32, error) {
	if len(key) > maxKey {
		return bucketID{}, 0, fmt.Errorf("%w: no room for a key of %d bytes", store.ErrFull, len(key))
	}
	n, err := b.spaces.get(limiter, bucket)
	return bucketID{key, n}, max(hash^uint32(n-1)*0x9e3779b9, 1), err
}

// makeRoom reports whether n more buckets of a key fit, after it has removed full ones, and evicted
// others if it must. What it looks at is bounded: if that is all of the same key, it reports false.
func (b *buckets) makeRoom(shard *bucketShard, n int, key string, now time.Duration) bool {
	t := &shard.table
	if t.count+n <= shard.limit {
		return true
	}
	t.sweep(sweepFull, now)
	for !b.refuse && t.count+n > shard.limit && t.evict(key) {
	}
	return t.count+n <= shard.limit
}

// ResetTokens implements store.Buckets.
func (s *Store) ResetTokens(ctx context.Context, limiter, key string, names []string) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	b := &s.buckets
	shard, hash := b.shardOf(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for _, name := range names {
		id, hash, err := b.identify(limiter, key, name, hash)
		if err != nil {
			return err
		}
		if i, found := shard.table.find(id, hash); found {
			shard.table.remove(i)
		}
	}
	return nil
}

// count is how many buckets there are, full ones that were not yet swept included.
func (b *buckets) count() (n int) {
	for i := range b.shards {
		shard := &b.shards[i]
		shard.mu.Lock()
		n += shard.table.count
		shard.mu.Unlock()
	}
	return n
}
