// Package denials caches denials of token buckets, so that a store need not ask its server again.
package denials

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// A denial is served from a local cache until the server could decide otherwise. A debt shrinks,
// and a hold ends, only with time, unless the key is charged, settled or reset. So while the least
// possible debt leaves no room for a charge, the server would deny it, too. The debt in a
// calendar's bucket stays until its period ends by the clock of the server.

const (
	// denialTTL bounds how long an entry is served, so that resets by other processes, and
	// settlements by which they give tokens back, take effect.
	denialTTL = time.Second
	// knownFor is how long an entry is kept to predict the server's decision.
	knownFor = denialTTL + denialTTL/2
	// clockStep is the resolution of servers' clocks: a debt there shrinks in steps, by up to one
	// step more or less than the elapsed time.
	clockStep = time.Microsecond
	// denialShards times denialsPerShard is the capacity, in entries of about 250 bytes and a copy
	// of the key.
	denialShards    = 64
	denialsPerShard = 1024
)

// Cache is a cache of denials. The zero value caches nothing.
type Cache struct {
	seed   maphash.Seed
	start  time.Time
	shards []denialShard

	due   atomic.Bool // a sweep is scheduled
	mu    sync.Mutex
	timer *time.Timer // runs the sweep; set with the first denial
	ended bool
}

type denialShard struct {
	mu     sync.Mutex
	table  expiry.Table[denialKey, denial]
	resets atomic.Uint64
}

type denialKey struct{ limiter, key string }

// denial is a denial by the server.
type denial struct {
	charges           []store.Charge
	debts             store.Debts
	held              time.Duration
	sentAt, repliedAt time.Duration // before and after the server decided
}

// Init makes room for denials.
func (d *Cache) Init() {
	d.seed, d.start, d.shards = maphash.MakeSeed(), time.Now(), make([]denialShard, denialShards)
	for i := range d.shards {
		d.shards[i].clear()
	}
}

func (s *denialShard) clear() { s.table = expiry.NewTable[denialKey, denial](denialsPerShard, nil) }

// sweepLater schedules a sweep, unless one is scheduled.
func (d *Cache) sweepLater() {
	if d.due.Load() || d.due.Swap(true) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended:
	case d.timer == nil:
		d.timer = time.AfterFunc(knownFor, d.sweep)
	default:
		d.timer.Reset(knownFor)
	}
}

// sweep removes expired entries, and frees the memory of empty shards.
func (d *Cache) sweep() {
	d.due.Store(false) // later entries schedule their own sweep
	left := 0
	for i := range d.shards {
		left += d.shards[i].sweep(d.now())
	}
	if left > 0 {
		d.sweepLater()
	}
}

func (s *denialShard) sweep(now time.Duration) (left int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.table.Len() == 0 {
		return 0
	}
	s.table.Sweep(s.table.Len(), int64(now))
	if s.table.Len() == 0 {
		s.clear()
	}
	return s.table.Len()
}

// Stop ends sweeps.
func (d *Cache) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

func (d *Cache) now() time.Duration { return time.Since(d.start) }

func (d *Cache) shardOf(key string) *denialShard {
	return &d.shards[maphash.String(d.seed, key)%denialShards]
}

// Around makes a decision: from the cache if the server would certainly deny it, or else by take, and
// caches a denial. deniedLately reports whether the last known decision about the key was one.
func (d *Cache) Around(r *store.TokenRequest, take func(deniedLately bool) (store.TakeReply, error)) (store.TakeReply, error) {
	cached, q, denied := d.lookup(r.Limiter, r.Key, r.Charges)
	if denied {
		return cached, nil
	}
	reply, err := take(q.denied)
	if err == nil {
		q.store(r.Limiter, r.Key, r.Charges, &reply)
	}
	return reply, err
}

// lookup returns a denial of charges that the server would certainly deny. Otherwise it returns a
// pending decision, which stores the reply of the server.
func (d *Cache) lookup(limiter, key string, charges []store.Charge) (store.TakeReply, pending, bool) {
	if d.shards == nil {
		return store.TakeReply{}, pending{}, false
	}
	shard, now := d.shardOf(key), d.now()
	shard.mu.Lock()
	defer shard.mu.Unlock()
	e := shard.table.Get(denialKey{limiter, key}, int64(now))
	if e != nil && e.Value.holdsFor(charges, now) && now < e.Value.sentAt+denialTTL {
		return e.Value.replyAt(now), pending{}, true
	}
	return store.TakeReply{}, pending{d, shard, now, shard.resets.Load(), e != nil}, false
}

// pending is a decision in flight.
type pending struct {
	cache  *Cache
	shard  *denialShard
	sentAt time.Duration
	resets uint64
	denied bool // the last decision about the key that the cache knows
}

// store caches a denial, unless the key may have been reset since, or the cache is full.
func (q pending) store(limiter, key string, charges []store.Charge, reply *store.TakeReply) {
	if q.shard == nil || reply.Allowed {
		return
	}
	now := q.cache.now()
	kept := denial{charges: charges, debts: reply.Debts, held: reply.Held, sentAt: q.sentAt, repliedAt: now}
	expires := int64(q.sentAt + knownFor)
	id := denialKey{limiter, key}
	q.shard.mu.Lock()
	defer q.shard.mu.Unlock()
	if q.shard.resets.Load() != q.resets || !kept.holdsFor(charges, now) {
		return
	}
	if e := q.shard.table.Get(id, int64(now)); e != nil {
		e.Value, e.Expires = kept, expires
		return
	}
	if q.shard.table.Room(1, int64(now)) {
		id.key = strings.Clone(key) // a substring of a request would keep the whole request in memory
		q.shard.table.Add(id, kept, expires, int64(now))
		q.cache.sweepLater()
	}
}

// Remove removes a key, and invalidates its decisions in flight. It is called after the reset, or
// the settlement: later decisions see it.
func (d *Cache) Remove(limiter, key string) {
	if d.shards == nil {
		return
	}
	shard := d.shardOf(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.resets.Add(1)
	shard.table.Remove(denialKey{limiter, key})
}

// Settled removes the key of a settlement that gave something back.
func (d *Cache) Settled(r *store.TokenRequest) {
	if slices.ContainsFunc(r.Charges, func(c store.Charge) bool { return c.Cost < 0 }) {
		d.Remove(r.Limiter, r.Key)
	}
}

// holdsFor reports whether the server would deny charges to the same buckets at this time. A denial
// does not say which of them are held, so a hold denies if all charges have a cost.
func (d *denial) holdsFor(charges []store.Charge, now time.Duration) bool {
	if same := len(charges) > 0 && &charges[0] == &d.charges[0]; !same && !slices.EqualFunc(d.charges, charges, sameBucket) {
		return false
	}
	since := now - d.sentAt + clockStep // at most, by the server's clock
	held, denied := d.held > since, false
	for i := range charges {
		c := &charges[i]
		debt := d.debts.At(i)
		if c.Period == nil {
			debt = c.Debt(debt - since)
		} else if left := d.debts.End(i) - since; left <= 0 || left > c.Period.Next.Sub(c.Period.Begin) {
			return false // see store.Charge.Used
		}
		denied = denied || c.Cost > 0 && !c.Fits(debt)
		held = held && c.Cost > 0
	}
	return denied || held
}

// sameBucket reports whether charges are equal except for their costs, and the bounds of periods: a
// bucket keeps its own bounds.
func sameBucket(a, b store.Charge) bool {
	if (a.Period == nil) != (b.Period == nil) {
		return false
	}
	a.Cost, b.Cost, a.Period, b.Period = 0, 0, nil, nil
	return a == b
}

// replyAt returns the denial with the largest possible debts and the longest possible hold, so that
// callers do not retry too early.
func (d *denial) replyAt(now time.Duration) store.TakeReply {
	since := max(now-d.repliedAt-clockStep, 0)
	reply := store.TakeReply{Cached: true, Held: max(d.held-since, 0), Debts: store.MakeDebts(len(d.charges))}
	for i := range d.charges {
		if d.charges[i].Period == nil {
			reply.Debts.Set(i, max(d.debts.At(i)-since, 0))
		} else {
			reply.Debts.Set(i, d.debts.At(i))
			reply.Debts.SetEnd(i, len(d.charges), d.debts.End(i)-since)
		}
	}
	return reply
}

// Len returns the number of denials in the cache. Denials that have expired since the last sweep
// count.
func (d *Cache) Len() (n int) {
	for i := range d.shards {
		shard := &d.shards[i]
		shard.mu.Lock()
		n += shard.table.Len()
		shard.mu.Unlock()
	}
	return n
}
