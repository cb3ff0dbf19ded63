package memstore

import (
	"context"
	"hash/maphash"
	"math/bits"
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
// cache lines, as processors fetch them. The first one has all that a decision needs.
type bucketShard struct {
	mu      sync.Mutex
	table   bucketTable
	limit   int
	missing int // slots that a decision is about to add
	_       [40]byte
}

const (
	maxShards = 256
	// shardBuckets is the minimum of buckets in each of several shards: with fewer, their numbers
	// would differ too much.
	shardBuckets = 256
)

// init makes room for limit buckets. Shards spread the contention of many keys. A small store has
// few, so that none of them reaches its bound long before the others: the first one is full when
// six of seven buckets are in debt.
func (b *buckets) init(limit int, refuse bool) {
	b.seed, b.refuse, b.wallClock = maphash.MakeSeed(), refuse, time.Now
	b.shards = make([]bucketShard, min(max(limit/shardBuckets, 1), maxShards))
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

// TakeQuickly implements store.QuickBuckets. Most requests have one charge, of a bucket that was
// charged at the same interval. It looks for that bucket once, and without a defer. This is the hot
// path.
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
		p.id.key = lasting(key)
		t.add(p.id, p.hash, now+debt, now)
	}
	shard.mu.Unlock()
	return debt, allowed, true
}

// requests are the requests of a decision.
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

// has reports whether a request is about the key of a slot.
func (r requests) has(s *bucketSlot) bool {
	for k := range r.len() {
		if s.isOf(r.at(k).Key) {
			return true
		}
	}
	return false
}

// shardSet is a set of shards.
type shardSet [maxShards / 64]uint64

func (s *shardSet) add(number int) { s[number/64] |= 1 << (number % 64) }

// lock locks shards in the order of their numbers, so that decisions do not wait for each other in
// a circle.
func (b *buckets) lock(set shardSet) {
	for i, some := range set {
		for ; some != 0; some &= some - 1 {
			b.shards[i*64+bits.TrailingZeros64(some)].mu.Lock()
		}
	}
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

// asked is a charge of a decision, and its bucket.
type asked struct {
	*store.Charge
	place
	found
	shard   *bucketShard
	request int // its number
}

// fewAsked are the charges of most decisions, for which a goroutine's stack has room.
type fewAsked [4]asked

// ask appends the charges of requests to asks, and returns the shards of their buckets. The buckets
// are not yet looked up, and the shards not yet locked.
func (b *buckets) ask(all requests, asks []asked) (_ []asked, set shardSet, err error) {
	for k := range all.len() {
		r := all.at(k)
		number, hash := b.shardOf(r.Key)
		for i := range r.Charges {
			p, err := b.place(r.Limiter, r.Key, &r.Charges[i], hash)
			if err != nil {
				return nil, set, err
			}
			asks = append(asks, asked{})
			a := &asks[len(asks)-1] // in place: it is large
			a.Charge, a.place, a.shard, a.request = &r.Charges[i], p, &b.shards[number], k
			set.add(number)
		}
	}
	return asks, set, nil
}

// earlier returns the cost of the charges before n to the same bucket, and whether there are any.
func earlier(asks []asked, n int) (cost time.Duration, any bool) {
	a := &asks[n]
	for i := range n {
		if p := &asks[i]; p.hash == a.hash && p.limit == a.limit && p.id.key == a.id.key {
			cost, any = cost+p.Cost, true
		}
	}
	return cost, any
}

// makeRoomFor makes room for all slots that the charges are about to add, and reports whether slots
// may have moved for that.
func (b *buckets) makeRoomFor(asks []asked, all requests, now time.Duration) (moved bool, err error) {
	for n := range asks {
		shard := asks[n].shard
		if shard.table.count+shard.missing <= shard.limit {
			continue
		}
		if moved = true; !b.makeRoom(shard, shard.missing, all, now) {
			return moved, store.ErrFull
		}
	}
	return moved, nil
}

// takeAll makes several charges, or none: it reads all buckets before it writes any.
func (b *buckets) takeAll(all requests, now time.Duration) (reply store.TakeReply, err error) {
	var few fewAsked
	asks, set, err := b.ask(all, few[:0])
	if err != nil {
		return reply, err
	}
	at := b.at(now, all)
	b.lock(set)
	defer b.unlock(set)
	reply.Debts = store.MakeDebts(len(asks))
	allowed, again, atMost := true, false, all.first.AtMost
	for n := range asks {
		a := &asks[n]
		a.found = b.look(&a.shard.table, &a.place, a.Charge, at)
		a.report(&reply.Debts, a.Charge, n, len(asks))
		held := b.held(&a.shard.table, &a.place, now)
		reply.Held = max(reply.Held, held)
		before, repeated := time.Duration(0), false
		if a.request > 0 && allowed { // so that the sum stays within capacities
			before, repeated = earlier(asks, n)
		}
		again = again || repeated
		if a.Cost == 0 {
			continue
		}
		allowed = allowed && held == 0 && a.Fits(a.debt+before)
		if atMost > 0 && allowed {
			atMost = min(atMost, int64((a.Capacity-a.debt)/a.Cost))
		}
		if !a.ok && before == 0 {
			a.shard.missing++
		}
	}
	if !allowed {
		return reply, nil
	}
	moved, err := b.makeRoomFor(asks, all, now)
	if err != nil {
		return store.TakeReply{}, err
	}
	moved = moved || again
	b.charge(asks, max(atMost, 1), moved, &reply.Debts, at)
	if again { // buckets that were charged first have grown since
		b.charge(asks, 0, true, &reply.Debts, at)
	}
	reply.Allowed, reply.Taken = true, atMost
	return reply, nil
}

// charge adds so many times the cost of every charge, for which there is room, and reads all debts.
// It looks for the buckets again if their slots may have moved.
func (b *buckets) charge(asks []asked, times int64, moved bool, debts *store.Debts, at instant) {
	text, request := "", 0
	for n := range asks {
		a := &asks[n]
		if a.request != request {
			text, request = "", a.request
		}
		if moved {
			a.found = b.look(&a.shard.table, &a.place, a.Charge, at)
		}
		if cost := a.Cost * time.Duration(times); cost > 0 {
			a.debt += cost
			moved = moved || !a.ok
			b.keep(&a.shard.table, &a.place, a.Charge, a.found, at, &text)
		}
		a.report(debts, a.Charge, n, len(asks))
	}
}

// makeRoom reports whether n more buckets fit. It removes full ones, and then evicts others, except
// of the keys of the decision, if the store does not refuse new keys.
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

// SettleQuickly implements store.QuickBuckets. It settles if the bucket is there, as the charge has
// left it.
func (s *Store) SettleQuickly(limiter, key string, c *store.Charge) (allowed, decided bool) {
	if s.closed.Load() {
		return false, false
	}
	now, b := time.Since(s.start), &s.buckets
	number, hash := b.shardOf(key)
	shard := &b.shards[number]
	p, err := b.place(limiter, key, c, hash)
	if err != nil || p.wide() {
		return false, false
	}
	shard.mu.Lock()
	t := &shard.table
	i, found := t.find(p.id, p.hash)
	if !found || c.Cost == 0 {
		shard.mu.Unlock()
		return false, false
	}
	debt, allowed := settle(c, c.Debt(t.slots[i].full-now))
	if debt > 0 {
		t.slots[i].full = now + debt
	} else {
		t.remove(i)
	}
	shard.mu.Unlock()
	return allowed, true
}

// settle returns the debt of a bucket after a settlement, and whether the bucket had room for it.
func settle(c *store.Charge, debt time.Duration) (after time.Duration, allowed bool) {
	if c.Cost == 0 {
		return debt, true
	}
	most := c.Capacity + c.Overdraft
	debt = min(debt, most)
	if c.Cost > most-debt {
		return most, false
	}
	return max(debt+c.Cost, 0), true
}

// SettleTokens implements store.Buckets.
func (s *Store) SettleTokens(ctx context.Context, r store.TokenRequest) (reply store.TakeReply, err error) {
	if err := s.ready(ctx); err != nil {
		return reply, err
	}
	now, b, all := time.Since(s.start), &s.buckets, requests{&r, nil}
	var few fewAsked
	asks, set, err := b.ask(all, few[:0])
	if err != nil {
		return reply, err
	}
	at := b.at(now, all)
	b.lock(set)
	defer b.unlock(set)
	for n := range asks {
		a := &asks[n]
		a.found = b.look(&a.shard.table, &a.place, a.Charge, at)
		if !a.ok && a.Cost > 0 {
			a.shard.missing++
		}
	}
	moved, err := b.makeRoomFor(asks, all, now)
	if err != nil {
		return reply, err
	}
	reply.Allowed, reply.Debts = true, store.MakeDebts(len(asks))
	text := ""
	for n := range asks {
		a := &asks[n]
		t := &a.shard.table
		if moved {
			a.found = b.look(t, &a.place, a.Charge, at)
		}
		debt, allowed := settle(a.Charge, a.debt)
		a.debt, reply.Allowed = debt, reply.Allowed && allowed
		if a.Period != nil && a.debt == 0 {
			_, a.left = a.Used(0, 0, at.wall)
		}
		a.report(&reply.Debts, a.Charge, n, len(asks))
		reply.Held = max(reply.Held, b.held(t, &a.place, now))
		switch {
		case a.Cost == 0:
		case a.debt > 0:
			moved = moved || !a.ok
			b.keep(t, &a.place, a.Charge, a.found, at, &text)
		case a.ok:
			moved = true
			t.remove(a.slot)
		}
	}
	return reply, nil
}
