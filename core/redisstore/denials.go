package redisstore

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/expiry"
)

// A denied key is denied again without a call to Redis until Redis may decide otherwise. What a key
// owes shrinks with time alone, unless it is charged more or reset: as long as the least that it can
// owe by now leaves no room for a charge, Redis would deny that too.

const (
	// denialLife bounds what is remembered of a key, so that another process's reset is seen.
	denialLife = time.Second
	// clockStep is what Redis's clock counts in: a debt there shrinks in steps, and so may have shrunk by
	// one more, or one less, than the time that has passed.
	clockStep = time.Microsecond
	// denialShards times denialsPerShard keys are remembered, about 250 bytes and a copy of the key each.
	denialShards    = 64
	denialsPerShard = 1024
)

// denials are what a store remembers. The zero value is one that remembers nothing.
type denials struct {
	seed   maphash.Seed
	start  time.Time
	shards []denialShard

	due   atomic.Bool // sweep is to run
	mu    sync.Mutex
	timer *time.Timer // which runs it; set with the first denial
	ended bool
}

type denialShard struct {
	mu     sync.Mutex
	table  expiry.Table[denialKey, denial]
	resets atomic.Uint64
}

type denialKey struct{ limiter, key string }

// denial is what Redis said of a key that it denied something.
type denial struct {
	charges      []store.Charge
	debts        store.Debts
	asked, heard time.Duration // before and after Redis said it
}

func (d *denials) init() {
	d.seed, d.start, d.shards = maphash.MakeSeed(), time.Now(), make([]denialShard, denialShards)
	for i := range d.shards {
		d.shards[i].clear()
	}
}

func (s *denialShard) clear() { s.table = expiry.NewTable[denialKey, denial](denialsPerShard, nil) }

// sweepLater has what expires removed a while from now, whether or not the store is called again.
func (d *denials) sweepLater() {
	if d.due.Load() || d.due.Swap(true) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.ended:
	case d.timer == nil:
		d.timer = time.AfterFunc(denialLife, d.sweep)
	default:
		d.timer.Reset(denialLife)
	}
}

// sweep removes what has expired. A shard that is empty then gives its memory back.
func (d *denials) sweep() {
	d.due.Store(false) // what is added from now on sees to its own sweep
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

// stop ends the sweeping.
func (d *denials) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	if d.timer != nil {
		d.timer.Stop()
	}
}

func (d *denials) now() time.Duration { return time.Since(d.start) }

func (d *denials) shardOf(key string) *denialShard {
	return &d.shards[maphash.String(d.seed, key)%denialShards]
}

// recall returns the denial of charges that Redis would certainly deny. Otherwise it returns a question,
// to be ended with what Redis says.
func (d *denials) recall(limiter, key string, charges []store.Charge) (store.TakeReply, question, bool) {
	if d.shards == nil {
		return store.TakeReply{}, question{}, false
	}
	shard, now := d.shardOf(key), d.now()
	shard.mu.Lock()
	defer shard.mu.Unlock()
	if e := shard.table.Get(denialKey{limiter, key}, int64(now)); e != nil && e.Value.holdsFor(charges, now) {
		return store.TakeReply{Debts: e.Value.debtsAt(now), Remembered: true}, question{}, true
	}
	return store.TakeReply{}, question{d, shard, now, shard.resets.Load()}, false
}

// question is one that Redis has been asked.
type question struct {
	of     *denials
	shard  *denialShard
	asked  time.Duration
	resets uint64
}

// remember keeps a denial, unless the key may have been reset after it, or too many are kept.
func (q question) remember(limiter, key string, charges []store.Charge, reply *store.TakeReply) {
	if q.shard == nil || reply.Allowed {
		return
	}
	now := q.of.now()
	kept := denial{charges: charges, debts: reply.Debts, asked: q.asked, heard: now}
	expires := int64(q.asked + denialLife)
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
		id.key = strings.Clone(key) // a key cut out of a request would keep all of its text in memory
		q.shard.table.Add(id, kept, expires, int64(now))
		q.of.sweepLater()
	}
}

// forget drops what is remembered of a key, and what is being said of it. It is called after the reset:
// what is asked from then on sees it.
func (d *denials) forget(limiter, key string) {
	if d.shards == nil {
		return
	}
	shard := d.shardOf(key)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	shard.resets.Add(1)
	shard.table.Remove(denialKey{limiter, key})
}

// holdsFor reports whether one of the charges, to the same buckets, is more than can be left by now.
func (d *denial) holdsFor(charges []store.Charge, now time.Duration) bool {
	if !slices.EqualFunc(d.charges, charges, sameBucket) {
		return false
	}
	for i := range charges {
		c := &charges[i]
		least := c.Debt(d.debts.At(i) - (now - d.asked + clockStep))
		if c.Cost > 0 && !c.Fits(least) {
			return true
		}
	}
	return false
}

func sameBucket(a, b store.Charge) bool {
	return a.Bucket == b.Bucket && a.Capacity == b.Capacity
}

// debtsAt are the most that the key may owe by what Redis has said: nobody is told to retry too early.
func (d *denial) debtsAt(now time.Duration) store.Debts {
	debts := store.MakeDebts(len(d.charges))
	for i := range d.charges {
		debts.Set(i, max(d.debts.At(i)-max(now-d.heard-clockStep, 0), 0))
	}
	return debts
}
