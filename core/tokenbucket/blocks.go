package tokenbucket

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// WithLease makes a process take the tokens of a key in blocks of up to n, and decide from the
// block. So one hot key needs a fraction of the store's calls. n is 2 to 1,000,000. It applies to
// decisions about a single token: those of [Limiter.Allow], and of Wait and Reserve.
//
// It saves few calls, or none, in these cases:
//   - The requests of a key are rare. The key is decided about one by one.
//   - The store takes longer than 25 ms to reply. The key is then decided about one by one, too.
//   - A key is at its limit. A block then has the few tokens that there are.
//   - The limiter has a candidate ([WithCandidate]), which asks the store about each decision.
//
// The bound: a block is charged when it is taken, and used within 100 ms. So in any time the key is
// granted its burst, its rate, and n more for each process. Tokens of a block that are not used by
// then are lost: up to n for each process when requests cease, and now and then some in steady
// traffic.
//
// A decision's Remaining does not include the tokens in blocks. A hold or a reset by another
// process begins up to 100 ms later in this one. If a [PlanFunc] returns other limits, the block of
// the earlier limits is lost.
func WithLease(n int64) Option { return func(c *config) { c.block, c.blocks = n, true } }

const (
	maxBlock  = 1_000_000
	blockLife = 100 * time.Millisecond
	// slowBlock is the time within which a store has to grant a block, since all callers of the key
	// wait for it.
	slowBlock = blockLife / 4
	// blockKeys bounds the keys of a limiter that have blocks. Other keys are decided about one by
	// one.
	blockKeys = 1024
)

// blocks is a limiter's store. It decides about single tokens from blocks that it has taken in
// advance.
type blocks struct {
	store.Buckets
	largest int64
	start   time.Time

	mu    sync.Mutex
	byKey expiry.Table[string, *block]
}

// block is the tokens of a key.
type block struct {
	charges []store.Charge // of one token
	size    int64          // when it was taken
	left    int64
	until   time.Duration
	slow    time.Duration   // until when its key is decided about one by one
	last    store.TakeReply // about the block
	taking  chan struct{}   // closed when the next block has been taken, or nil
	taken   bool            // the last attempt to take one had a reply
	drops   int             // the number of drops
}

func newBlocks(of store.Buckets, largest int64) *blocks {
	return &blocks{
		Buckets: of, largest: largest, start: time.Now(),
		byKey: expiry.NewTable[string, *block](blockKeys, nil),
	}
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

// next returns the number of tokens of a key's next block:
//   - twice as many as the last one had, up to the largest, if they were used in half its life;
//   - as many, if they were used in its life;
//   - one less than were used, if it has expired;
//   - one, if it has expired more than a life ago.
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

// isOf reports whether a block was taken by a plan of these limits. It ignores the bounds of
// calendar periods, which depend on the time of a decision.
func (b *block) isOf(charges []store.Charge) bool {
	return slices.EqualFunc(b.charges, charges, func(x, y store.Charge) bool {
		if (x.Period == nil) != (y.Period == nil) {
			return false
		}
		x.Period, y.Period = nil, nil
		return x == y
	})
}

// single reports whether a request is about one token of each limit, and nothing else.
func single(r *store.TokenRequest, more []store.TokenRequest) bool {
	return len(more) == 0 && r.AtMost == 0 && !slices.ContainsFunc(r.Charges, func(c store.Charge) bool {
		return c.Cost != c.Interval || strings.HasPrefix(c.Bucket, internalBucket)
	})
}

// TakeTokens implements store.Buckets. It takes one token from a block, or takes the next block.
// While it takes a block, other callers wait, and share a denial.
func (bs *blocks) TakeTokens(
	ctx context.Context, r store.TokenRequest, more ...store.TokenRequest,
) (store.TakeReply, error) {
	if !single(&r, more) {
		return bs.Buckets.TakeTokens(ctx, r, more...)
	}
	for waited := false; ; waited = true {
		if err := ctx.Err(); err != nil {
			return store.TakeReply{}, err
		}
		now := time.Since(bs.start)
		bs.mu.Lock()
		b := bs.of(r.Key, now)
		switch {
		case b == nil, waited && !b.taken, now < b.slow:
			bs.mu.Unlock()
			return bs.Buckets.TakeTokens(ctx, r)
		case b.left > 0 && now < b.until && b.isOf(r.Charges):
			b.left--
			reply := b.last
			bs.mu.Unlock()
			reply.Leased = true
			return reply, nil
		case waited && b.taking == nil && !b.last.Allowed && b.isOf(r.Charges):
			reply := b.last
			bs.mu.Unlock()
			return reply, nil
		case b.taking == nil:
			r.AtMost = bs.next(b, now)
			// If it is not taken, the next one begins with a token.
			b.taking, b.taken, b.size, b.left = make(chan struct{}), false, 0, 0
			drops := b.drops
			bs.mu.Unlock()
			return bs.take(ctx, r, b, drops)
		}
		taking := b.taking
		bs.mu.Unlock()
		select {
		case <-taking:
		case <-ctx.Done():
		}
	}
}

// take takes the next block of a key, and the first token of it.
func (bs *blocks) take(ctx context.Context, r store.TokenRequest, b *block, drops int) (store.TakeReply, error) {
	sent := time.Since(bs.start)
	defer func() { // also if the store panics
		bs.mu.Lock()
		defer bs.mu.Unlock()
		close(b.taking)
		b.taking = nil
	}()
	reply, err := bs.Buckets.TakeTokens(ctx, r)
	replied := time.Since(bs.start)
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if replied-sent > slowBlock {
		b.slow = replied + blockLife
	}
	if err != nil {
		return reply, err
	}
	b.taken, b.size, b.until = true, reply.Taken, sent+blockLife
	if b.drops == drops {
		b.left = max(reply.Taken-1, 0)
	}
	reply.Taken = 0
	b.charges, b.last = slices.Clone(r.Charges), reply
	return reply, nil
}

// HoldTokens implements store.Buckets.
func (bs *blocks) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	defer bs.drop(r.Key)
	return bs.Buckets.HoldTokens(ctx, r, d)
}

// ResetTokens implements store.Buckets.
func (bs *blocks) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	defer bs.drop(r.Key)
	return bs.Buckets.ResetTokens(ctx, r)
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
