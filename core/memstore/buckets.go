package memstore

import (
	"context"
	"hash/maphash"
	"math/bits"
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

	wallClock func() time.Time // of calendars
}

// bucketShard has all buckets of a key, so that one mutex makes a decision atomic. It is a pair of
// cache lines, as processors fetch them: all that a decision needs of it is in the first.
type bucketShard struct {
	mu      sync.Mutex
	table   bucketTable
	limit   int
	missing int // slots that a decision is about to add
	_       [40]byte
}

const maxShards = 256

// init makes a place for so many buckets. Shards spread the contention of many keys; a small store
// has few, so that its bound is not reached by one of them long before the others.
func (b *buckets) init(limit int, refuse bool) {
	b.seed, b.refuse, b.wallClock = maphash.MakeSeed(), refuse, time.Now
	b.shards = make([]bucketShard, min(max(limit/1024, 1), maxShards))
	for i := range b.shards {
		b.shards[i].limit = (limit + len(b.shards) - 1) / len(b.shards)
	}
}

// shardOf returns the number of a key's shard, and the key's hash within it.
func (b *buckets) shardOf(key string) (int, uint32) {
	hash := maphash.String(b.seed, key)
	return int(uint64(uint32(hash)) * uint64(len(b.shards)) >> 32), uint32(hash >> 32)
}

// TakeTokens implements store.Buckets.
func (s *Store) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (reply store.TakeReply, err error) {
	if err := s.acceptsNew(ctx); err != nil {
		return reply, err
	}
	return s.buckets.takeAll(requests{&r, more}, time.Since(s.start))
}

// TakeQuickly implements store.QuickBuckets. Most requests have an only charge, of a bucket that was
// charged at the same interval: it looks for that once, and without a defer. This is the hot path.
func (s *Store) TakeQuickly(ctx context.Context, limiter, key string, c *store.Charge) (debt time.Duration, allowed, decided bool) {
	if s.acceptsNew(ctx) != nil {
		return 0, false, false
	}
	now, b := time.Since(s.start), &s.buckets
	number, hash := b.shardOf(key)
	shard := &b.shards[number]
	p, err := b.place(limiter, key, c, hash)
	if err != nil || p.wide() {
		return 0, false, false
	}
	shard.mu.Lock()
	t := &shard.table
	i, found := t.find(p.id, p.hash)
	if (!found || t.held > now) && t.hasNeighbour(i, p.hash) || !found && t.count >= shard.limit {
		shard.mu.Unlock() // it may be held, or have been charged at another interval; or there may be no room
		return 0, false, false
	}
	if found {
		debt = c.Debt(t.slots[i].full - now)
	}
	allowed = c.Fits(debt)
	switch {
	case !allowed || c.Cost == 0:
	case found:
		debt += c.Cost
		t.slots[i].full = now + debt
	default:
		debt += c.Cost
		p.id.key = strings.Clone(key) // a key cut out of a request would keep all of its text in memory
		t.add(p.id, p.hash, now+debt, now)
	}
	shard.mu.Unlock()
	return debt, allowed, true
}

// requests are those of a decision.
type requests struct {
	first *store.TokenRequest
	more  []store.TokenRequest
}

func (r requests) len() int { return 1 + len(r.more) }

func (r requests) at(k int) *store.TokenRequest {
	if k == 0 {
		return r.first
	}
	return &r.more[k-1]
}

// has reports whether a request is about the key.
func (r requests) has(key string) bool {
	for k := range r.len() {
		if r.at(k).Key == key {
			return true
		}
	}
	return false
}

// before returns what requests before k cost a bucket of its key, and whether any of them is about
// it.
func (r requests) before(k int, bucket string) (cost time.Duration, again bool) {
	q := r.at(k)
	for j := range k {
		p := r.at(j)
		if p.Key != q.Key || p.Limiter != q.Limiter {
			continue
		}
		for i := range p.Charges {
			if p.Charges[i].Bucket == bucket {
				cost, again = cost+p.Charges[i].Cost, true
			}
		}
	}
	return cost, again
}

// shardSet is a set of shards.
type shardSet [maxShards / 64]uint64

// lock locks the shards of all keys, in the order of their numbers, so that decisions do not wait
// for each other in a circle.
func (b *buckets) lock(all requests) (set shardSet) {
	for k := range all.len() {
		n, _ := b.shardOf(all.at(k).Key)
		set[n/64] |= 1 << (n % 64)
	}
	for i, some := range set {
		for ; some != 0; some &= some - 1 {
			b.shards[i*64+bits.TrailingZeros64(some)].mu.Lock()
		}
	}
	return set
}

func (b *buckets) unlock(set shardSet) {
	for i, some := range set {
		for ; some != 0; some &= some - 1 {
			shard := &b.shards[i*64+bits.TrailingZeros64(some)]
			shard.missing = 0
			shard.mu.Unlock()
		}
	}
}

// takeAll makes several charges, or none: it reads all buckets before it writes any.
func (b *buckets) takeAll(all requests, now time.Duration) (reply store.TakeReply, err error) {
	at := b.at(now, all)
	set := b.lock(all)
	defer b.unlock(set)
	count := 0
	for k := range all.len() {
		count += len(all.at(k).Charges)
	}
	reply.Debts = store.MakeDebts(count)
	allowed, again, atMost, n := true, false, all.first.AtMost, 0
	for k := range all.len() {
		r := all.at(k)
		number, hash := b.shardOf(r.Key)
		shard := &b.shards[number]
		for i := range r.Charges {
			c := &r.Charges[i]
			p, err := b.place(r.Limiter, r.Key, c, hash)
			if err != nil {
				return store.TakeReply{}, err
			}
			f := b.look(&shard.table, &p, c, at)
			f.report(&reply.Debts, c, n, count)
			n++
			held := b.held(&shard.table, &p, now)
			reply.Held = max(reply.Held, held)
			before, repeated := time.Duration(0), false
			if k > 0 && allowed { // so that what is added stays within capacities
				before, repeated = all.before(k, c.Bucket)
			}
			again = again || repeated
			if c.Cost == 0 {
				continue
			}
			allowed = allowed && held == 0 && c.Fits(f.debt+before)
			if atMost > 0 && allowed {
				atMost = min(atMost, int64((c.Capacity-f.debt)/c.Cost))
			}
			if !f.ok && before == 0 {
				shard.missing++
			}
		}
	}
	if !allowed {
		return reply, nil
	}
	for k := range all.len() {
		number, _ := b.shardOf(all.at(k).Key)
		if shard := &b.shards[number]; !b.makeRoom(shard, shard.missing, all, now) {
			return store.TakeReply{}, store.ErrFull
		}
	}
	b.charge(all, max(atMost, 1), &reply.Debts, count, at)
	if again { // what was charged first has grown since
		b.charge(all, 0, &reply.Debts, count, at)
	}
	reply.Allowed, reply.Taken = true, atMost
	return reply, nil
}

// charge adds so many times the cost of every charge, for which there is room, and reads all debts,
// of which there are count.
func (b *buckets) charge(all requests, times int64, debts *store.Debts, count int, at instant) {
	n := 0
	for k := range all.len() {
		r, text := all.at(k), ""
		number, hash := b.shardOf(r.Key)
		shard := &b.shards[number]
		for i := range r.Charges {
			c := &r.Charges[i]
			p, err := b.place(r.Limiter, r.Key, c, hash)
			if err != nil {
				continue // it had a place when the decision was made
			}
			f := b.look(&shard.table, &p, c, at)
			if cost := c.Cost * time.Duration(times); cost > 0 {
				f.debt += cost
				b.keep(&shard.table, &p, c, f, at, &text)
			}
			f.report(debts, c, n, count)
			n++
		}
	}
}

// makeRoom reports whether n more buckets fit, after it has removed full ones, and evicted others
// of other keys if it must. What it looks at is bounded: if that is all to be spared, it reports
// false.
func (b *buckets) makeRoom(shard *bucketShard, n int, all requests, now time.Duration) bool {
	t := &shard.table
	if t.count+n <= shard.limit {
		return true
	}
	t.sweep(sweepFull, now)
	for !b.refuse && t.count+n > shard.limit && t.evict(all.has) {
	}
	return t.count+n <= shard.limit
}

// SettleTokens implements store.Buckets.
func (s *Store) SettleTokens(ctx context.Context, r store.TokenRequest) (reply store.TakeReply, err error) {
	if err := s.ready(ctx); err != nil {
		return reply, err
	}
	now, b, all := time.Since(s.start), &s.buckets, requests{&r, nil}
	at := b.at(now, all)
	set := b.lock(all)
	defer b.unlock(set)
	number, hash := b.shardOf(r.Key)
	shard, text := &b.shards[number], ""
	for i := range r.Charges {
		c := &r.Charges[i]
		p, err := b.place(r.Limiter, r.Key, c, hash)
		if err != nil {
			return reply, err
		}
		if f := b.look(&shard.table, &p, c, at); !f.ok && c.Cost > 0 {
			shard.missing++
		}
	}
	if !b.makeRoom(shard, shard.missing, all, now) {
		return reply, store.ErrFull
	}
	reply.Allowed, reply.Debts = true, store.MakeDebts(len(r.Charges))
	for i := range r.Charges {
		c := &r.Charges[i]
		p, err := b.place(r.Limiter, r.Key, c, hash)
		if err != nil {
			return reply, err
		}
		f := b.look(&shard.table, &p, c, at)
		if most := c.Capacity + c.Overdraft; c.Cost > most-f.debt {
			reply.Allowed, f.debt = false, most
		} else {
			f.debt = max(f.debt+c.Cost, 0)
		}
		if c.Period != nil && f.debt == 0 {
			_, f.left = c.Used(0, 0, at.wall)
		}
		f.report(&reply.Debts, c, i, len(r.Charges))
		reply.Held = max(reply.Held, b.held(&shard.table, &p, now))
		switch {
		case c.Cost == 0:
		case f.debt > 0:
			b.keep(&shard.table, &p, c, f, at, &text)
		case f.ok:
			shard.table.remove(f.slot)
		}
	}
	return reply, nil
}
