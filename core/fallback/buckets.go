package fallback

import (
	"context"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Buckets returns a store of token buckets that sends to standIn, usually a store in memory, the
// decisions that primary cannot make: those that fail with an outage ([store.Down]) while their
// context lasts. A full, misconfigured or closed primary is not down.
//
// In the stand-in a limit has the share of its rate and of its burst that this process may have, but
// at least a burst of one decision; share is above 0 and at most 1. The buckets of the stand-in begin
// full. So processes whose shares add up to 1 admit together at most one burst, and the rate, beside
// what primary admitted, and a decision that primary made but could not confirm is charged twice.
// Choose one divided by the number of processes, where that is known.
//
// If the stand-in fails too, the error is primary's. ResetTokens resets both.
//
// Buckets returns an error for a nil store and for a share out of its range.
func Buckets(primary, standIn store.Buckets, share float64) (store.Buckets, error) {
	if err := check("Buckets", primary, standIn, share); err != nil {
		return nil, err
	}
	return &buckets{registerOf(primary), primary, standIn, share}, nil
}

type buckets struct {
	register
	primary, standIn store.Buckets
	share            float64
}

var (
	_ store.Buckets  = (*buckets)(nil)
	_ namesake.Store = (*buckets)(nil)
)

// TakeTokens implements store.Buckets.
func (b *buckets) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	reply, err := b.primary.TakeTokens(ctx, limiter, key, charges)
	if !store.Down(err) || ctx.Err() != nil {
		return reply, err
	}
	parts := make([]store.Charge, len(charges))
	for i := range charges {
		parts[i] = b.part(&charges[i])
	}
	reply, standInErr := b.standIn.TakeTokens(ctx, limiter, key, parts)
	if standInErr != nil {
		return reply, none(err, standInErr)
	}
	for i := range charges {
		reply.Debts.Set(i, b.whole(&charges[i], &parts[i], reply.Debts.At(i), reply.Allowed))
	}
	return reply, nil
}

// ResetTokens implements store.Buckets.
func (b *buckets) ResetTokens(ctx context.Context, limiter, key string, names []string) error {
	_ = b.standIn.ResetTokens(ctx, limiter, key, names)
	return b.primary.ResetTokens(ctx, limiter, key, names)
}

// part returns a charge for this process's share: at a share of the rate every token takes longer.
func (b *buckets) part(c *store.Charge) store.Charge {
	part := *c
	part.Cost = scale(c.Cost, 1/b.share)
	part.Capacity = max(c.Capacity, part.Cost) // a burst of less than one decision would deny them all
	return part
}

// whole returns the debt that says of the limit as a whole what the debt of its part says: after a
// denial, how long the charge will not fit, which may take a debt above the capacity; otherwise, how
// many tokens are left.
func (b *buckets) whole(c, part *store.Charge, debt time.Duration, allowed bool) time.Duration {
	if wait := debt + part.Cost - part.Capacity; !allowed && wait > 0 {
		return wait + c.Capacity - c.Cost
	}
	return max(c.Capacity-scale(part.Capacity-debt, b.share), 0)
}

// scale returns a multiple of a duration, rounded up, and the longest one where it is too long.
func scale(d time.Duration, by float64) time.Duration {
	if by == 1 {
		return d
	}
	scaled := math.Ceil(float64(d) * by)
	if scaled >= float64(longest) {
		return longest
	}
	return time.Duration(scaled)
}

// longest is the longest cost of a charge: store.Charge bounds capacities by about twenty years.
const longest = 20 * 365 * 24 * time.Hour
