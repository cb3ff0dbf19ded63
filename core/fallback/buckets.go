package fallback

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Buckets returns a store of token buckets with a stand-in. It sends a decision that fails on
// primary with an outage ([store.Down]), while its context lasts, to standIn, usually a store in
// memory. A full, overloaded, misconfigured or closed primary is not down. A request without costs,
// as of Peek, goes to the store that made the last decision with costs.
//
// In the stand-in a limit has the share of its rate and of its burst that this process may have,
// but at least a burst of one decision; share is above 0 and at most 1. A limit of a calendar has
// the share of the period's tokens there, rounded down, but at least the tokens of one decision.
// The buckets of the stand-in begin full. So processes whose shares add up to 1 admit together at
// most one burst, and the rate, in addition to the requests that primary admitted. A decision that
// primary made but could not confirm is charged twice. Choose one divided by the number of
// processes, if it is known.
//
// If the stand-in fails too, the error is primary's. SettleTokens settles in the store that made
// the reservation, which the request names ([store.TakeReply]): while primary is down, its
// reservations are not settled. HoldTokens holds and ResetTokens resets in both stores. An error of
// HoldTokens may be of one of them: if primary is down, the buckets are held in the stand-in of
// this process only.
//
// Buckets returns an error for a nil store and for a share out of its range.
func Buckets(primary, standIn store.Buckets, share float64) (store.Buckets, error) {
	if err := check("Buckets", primary, standIn, share); err != nil {
		return nil, err
	}
	return &buckets{register: registerOf(primary), primary: primary, standIn: standIn, share: share}, nil
}

type buckets struct {
	register
	primary, standIn store.Buckets
	share            float64
	away             atomic.Bool // primary did not make the last decision with costs
}

var (
	_ store.Buckets  = (*buckets)(nil)
	_ namesake.Store = (*buckets)(nil)
)

// TakeTokens implements store.Buckets.
func (b *buckets) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	var err error
	if looks := looks(r, more); !looks || !b.away.Load() {
		var reply store.TakeReply
		reply, err = b.primary.TakeTokens(ctx, r, more...)
		down := store.Down(err) && ctx.Err() == nil
		if !looks && down != b.away.Load() {
			b.away.Store(down)
		}
		if !down {
			return reply, err
		}
	}
	return b.takeFromStandIn(ctx, err, append([]store.TokenRequest{r}, more...))
}

// looks reports whether requests charge nothing. A primary that takes no writes may still reply to
// them, although the stand-in makes the decisions.
func looks(r store.TokenRequest, more []store.TokenRequest) bool {
	costs := func(r store.TokenRequest) bool {
		return slices.ContainsFunc(r.Charges, func(c store.Charge) bool { return c.Cost != 0 })
	}
	return !costs(r) && !slices.ContainsFunc(more, costs)
}

// takeFromStandIn makes a decision that primary has not made, because of err.
func (b *buckets) takeFromStandIn(ctx context.Context, err error, all []store.TokenRequest) (store.TakeReply, error) {
	ours := make([]store.TokenRequest, len(all))
	for k := range all {
		ours[k] = parts(all[k], b.part)
	}
	reply, standInErr := b.standIn.TakeTokens(ctx, ours[0], ours[1:]...)
	if standInErr != nil && err == nil {
		return reply, standInErr
	}
	if standInErr != nil {
		return reply, none(err, standInErr)
	}
	n := 0
	for k := range all {
		for i := range all[k].Charges {
			reply.Debts.Set(n, b.whole(&all[k].Charges[i], &ours[k].Charges[i], reply.Debts.At(n), reply.Allowed))
			n++
		}
	}
	reply.StandIn = true
	return reply, nil
}

// SettleTokens implements store.Buckets.
func (b *buckets) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	if !r.StandIn {
		return b.primary.SettleTokens(ctx, r)
	}
	ours := parts(r, b.settlement)
	reply, err := b.standIn.SettleTokens(ctx, ours)
	if err != nil {
		return reply, err
	}
	for i := range r.Charges {
		reply.Debts.Set(i, b.whole(&r.Charges[i], &ours.Charges[i], reply.Debts.At(i), true))
	}
	reply.StandIn = true
	return reply, nil
}

// HoldTokens implements store.Buckets.
func (b *buckets) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	standInErr := b.standIn.HoldTokens(ctx, r, d)
	if err := b.primary.HoldTokens(ctx, r, d); err != nil {
		return err
	}
	return standInErr
}

// ResetTokens implements store.Buckets.
func (b *buckets) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	_ = b.standIn.ResetTokens(ctx, r)
	return b.primary.ResetTokens(ctx, r)
}

// parts returns a request with the charges for this process's share.
func parts(r store.TokenRequest, part func(*store.Charge) store.Charge) store.TokenRequest {
	charges := make([]store.Charge, len(r.Charges))
	for i := range r.Charges {
		charges[i] = part(&r.Charges[i])
	}
	r.Charges = charges
	return r
}

// part returns a charge for this process's share: at a share of the rate every token takes longer.
// The interval stays the limit's, since the parts of two rates have the same ratio as the rates.
func (b *buckets) part(c *store.Charge) store.Charge {
	part := *c
	if c.Period != nil {
		return b.ofPeriod(part)
	}
	part.Cost = scale(c.Cost, 1/b.share)
	if c.Cost <= c.Capacity {
		part.Capacity = max(c.Capacity, part.Cost) // a burst of less than one decision would deny them all
	}
	return part
}

// settlement returns a charge of SettleTokens for this process's share. A decision may have left a
// debt above the capacity: a settlement that adds to it must not reduce it.
func (b *buckets) settlement(c *store.Charge) store.Charge {
	part := *c
	if c.Period != nil {
		return b.ofPeriod(part)
	}
	part.Cost = scale(c.Cost, 1/b.share)
	part.Overdraft = max(c.Overdraft, scale(c.Capacity, 1/b.share)-c.Capacity)
	return part
}

// ofPeriod returns a charge of a calendar with its share of the tokens, and the same largest debt.
func (b *buckets) ofPeriod(c store.Charge) store.Charge {
	share := time.Duration(math.Floor(float64(c.Capacity) * b.share))
	if least := max(c.Cost, 1); least <= c.Capacity {
		share = max(share, least)
	}
	c.Overdraft += c.Capacity - share
	c.Capacity = share
	return c
}

// whole returns the debt of the whole limit for a debt of its part:
//   - After a denial, it shows for how long the charge will not fit, which may take a debt above
//     the capacity.
//   - Otherwise, it shows how many tokens are left. For a calendar it always does, and so denies
//     larger charges.
func (b *buckets) whole(c, part *store.Charge, debt time.Duration, allowed bool) time.Duration {
	if c.Period != nil {
		return debt + c.Capacity - part.Capacity
	}
	if wait := debt + part.Cost - part.Capacity; !allowed && wait > 0 {
		return wait + c.Capacity - c.Cost
	}
	return max(c.Capacity-scale(part.Capacity-debt, b.share), 0)
}

// scale returns a multiple of a duration, rounded up, and at most longest.
func scale(d time.Duration, by float64) time.Duration {
	if by == 1 {
		return d
	}
	scaled := math.Ceil(float64(d) * by)
	return time.Duration(min(max(scaled, -float64(longest)), float64(longest)))
}

// longest is the longest cost of a charge, and so of a capacity, to which the overdraft is added:
// store.Charge bounds both together by about forty years.
const longest = 20 * 365 * 24 * time.Hour
