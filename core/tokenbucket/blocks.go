package tokenbucket

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// WithLease makes a process take the tokens of a key that it is asked for often in blocks of up to
// n, and decide from those, so that one hot key needs a fraction of the store's calls. n is 2 to
// 1,000,000. It applies to [Limiter.Allow] and [Limiter.Wait]; a key whose requests are rare is
// decided about one by one, and so is one whose store takes longer than 25 ms to reply. It saves
// little where a key is at its limit, since a block then has what little there is, and nothing
// [WithCandidate].
//
// The bound: a block is charged when it is taken, and used within 100 ms, so in any time the key is
// granted its burst, its rate, and n more for each process. What is not used by then is lost: up to
// n for each process when requests cease, and now and then some in steady traffic. A decision's
// Remaining does not count what processes have taken, and a hold or a reset by another process
// begins 100 ms later here. Where a [PlanFunc] returns other limits, the block of the earlier ones
// is lost.
func WithLease(n int64) Option { return func(c *config) { c.block, c.blocks = n, true } }

const (
	maxBlock  = 1_000_000
	blockLife = 100 * time.Millisecond
	// slowBlock is how long a store may take to grant a block, for which all callers wait.
	slowBlock = blockLife / 4
	// blockKeys bounds the keys of a limiter that have blocks; others are decided about one by one.
	blockKeys = 1024
)

// blocks are the tokens that a limiter's process has taken in advance.
type blocks struct {
	largest int64
	start   time.Time

	mu    sync.Mutex
	byKey expiry.Table[string, *block]
}

// block is the tokens of a key.
type block struct {
	plan   *fixedPlan
	size   int64 // when it was taken
	left   int64
	until  time.Duration
	slow   time.Duration // until when its key is decided about one by one
	last   Decision      // about the block
	taking chan struct{} // closed when the next block has been taken, or nil
	taken  bool          // the last attempt to take one had a reply
	drops  int           // how often it was dropped
}

func newBlocks(largest int64) *blocks {
	return &blocks{largest: largest, start: time.Now(), byKey: expiry.NewTable[string, *block](blockKeys, nil)}
}

// of returns the block of a key, or nil if there are too many. The caller holds mu.
func (bs *blocks) of(key string, now time.Duration) *block {
	if e := bs.byKey.Get(key, int64(now)); e != nil {
		e.Expires = int64(now + 10*blockLife)
		return e.Value
	}
	if !bs.byKey.Room(1, int64(now)) {
		return nil
	}
	b := new(block)
	bs.byKey.Add(strings.Clone(key), b, int64(now+10*blockLife), int64(now))
	return b
}

// next returns how many tokens the next block of a key has: as many as the last one, or as were
// used of it, and twice as many if they were used in half its life.
func (bs *blocks) next(b *block, now time.Duration) int64 {
	switch {
	case now >= b.until+blockLife:
		return 1
	case now >= b.until:
		return max(b.size-b.left-1, 1)
	case now >= b.until-blockLife/2:
		return max(b.size, 1)
	}
	return max(min(2*b.size, bs.largest), 1)
}

// isOf reports whether a block was taken by a plan of these limits.
func (b *block) isOf(plan *fixedPlan) bool {
	return b.plan == plan || b.plan != nil && slices.Equal(b.plan.meters, plan.meters)
}

// allowLeased takes one token from a block, or takes the next block. During that, other callers wait,
// and share a denial.
func (l *Limiter) allowLeased(ctx context.Context, key string, plan *fixedPlan, d *Decision) error {
	bs := l.blocks
	for waited := false; ; waited = true {
		if err := ctx.Err(); err != nil {
			return err
		}
		now := time.Since(bs.start)
		bs.mu.Lock()
		b := bs.of(key, now)
		switch {
		case b == nil, waited && !b.taken, now < b.slow:
			bs.mu.Unlock()
			r := l.request(key, plan.charges(1))
			return l.take(ctx, plan, &r, nil, d)
		case b.left > 0 && now < b.until && b.isOf(plan):
			b.left--
			*d = b.last
			bs.mu.Unlock()
			d.Source = FromLease
			l.telemetry.End(ctx, l.telemetry.Begin(ctx), resultOf(d, nil), nil)
			return nil
		case waited && b.taking == nil && !b.last.Allowed && b.isOf(plan):
			*d = b.last
			bs.mu.Unlock()
			l.telemetry.End(ctx, l.telemetry.Begin(ctx), resultOf(d, nil), nil)
			return nil
		case b.taking == nil:
			size := bs.next(b, now)
			// Unless it is taken, the next one begins with a token.
			b.taking, b.taken, b.size, b.left = make(chan struct{}), false, 0, 0
			drops := b.drops
			bs.mu.Unlock()
			return l.takeBlock(ctx, key, plan, b, size, drops, d)
		}
		taking := b.taking
		bs.mu.Unlock()
		select {
		case <-taking:
		case <-ctx.Done():
		}
	}
}

// takeBlock takes the next block of a key, and the first token of it.
func (l *Limiter) takeBlock(
	ctx context.Context, key string, plan *fixedPlan, b *block, size int64, drops int, d *Decision,
) error {
	sent := time.Since(l.blocks.start)
	defer func() { // also if the store panics
		l.blocks.mu.Lock()
		defer l.blocks.mu.Unlock()
		close(b.taking)
		b.taking = nil
	}()
	r := l.request(key, plan.charges(1))
	r.AtMost = size
	err := l.take(ctx, plan, &r, nil, d)
	replied := time.Since(l.blocks.start)
	l.blocks.mu.Lock()
	defer l.blocks.mu.Unlock()
	if replied-sent > slowBlock {
		b.slow = replied + blockLife
	}
	if err != nil {
		return err
	}
	b.taken, b.size, b.until = true, d.Taken, sent+blockLife
	if b.drops == drops {
		b.left = max(d.Taken-1, 0)
	}
	d.Taken = 0
	b.plan, b.last = plan, *d
	return nil
}

// drop forgets the block of a key, also one that is being taken.
func (bs *blocks) drop(key string) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if e := bs.byKey.Get(key, int64(time.Since(bs.start))); e != nil {
		e.Value.left = 0
		e.Value.drops++
	}
}
