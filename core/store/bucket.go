package store

import (
	"context"
	"time"
)

// Buckets keeps token buckets. core/memstore and core/redisstore implement it; storetest.Buckets is
// the suite that every implementation must pass.
//
// A store knows no tokens: it keeps, for every bucket, a debt, which a charge increases and which
// shrinks as the store's own clock advances, by as much. A bucket without debt is full, and need
// not be kept.
type Buckets interface {
	// TakeTokens adds the cost of every charge to its bucket, among the buckets of a key of the
	// limiter with that name, if each of them stays within its capacity. Otherwise it changes
	// nothing: all charges or none, in one atomic step. A charge without a cost only reads. It
	// returns the debts after the step, one for each charge, in order. It must not change the
	// charges, which calls share.
	//
	// An implementation must not send a charge again once it may have been carried out; it returns
	// ErrUnconfirmed then. Errors match ErrUnavailable or are the context's.
	TakeTokens(ctx context.Context, limiter, key string, charges []Charge) (TakeReply, error)

	// ResetTokens removes the named buckets of a key, which makes them full.
	ResetTokens(ctx context.Context, limiter, key string, buckets []string) error
}

// Charge is what one limit asks of its bucket. Neither duration is negative, and no capacity is
// longer than about twenty years: a store may add a debt within it to the time of day.
type Charge struct {
	Bucket   string        // names the bucket among those of its key; empty for a key's only one
	Cost     time.Duration // what the charge adds to the debt
	Capacity time.Duration // the largest debt that the bucket may have
}

// Debt returns the debt of a bucket that will be full after left. It is never more than the
// capacity, so that a clock that steps back does not lock a key out.
func (c *Charge) Debt(left time.Duration) time.Duration { return min(max(left, 0), c.Capacity) }

// Fits reports whether a bucket with this debt, which is at most the capacity, can bear the charge.
func (c *Charge) Fits(debt time.Duration) bool { return c.Cost <= c.Capacity-debt }

// TakeReply is the answer to TakeTokens.
type TakeReply struct {
	Allowed bool
	// Cached means that a denial comes from the store's denial cache.
	Cached bool
	Debts  Debts
}

// Debts are the debts of the buckets of charges, in their order. A single one needs no allocation.
type Debts struct {
	first  time.Duration
	others *[]time.Duration
}

// OneDebt returns the Debts of one charge.
func OneDebt(d time.Duration) Debts { return Debts{first: d} }

// MakeDebts returns n debts of zero.
func MakeDebts(n int) Debts {
	if n < 2 {
		return Debts{}
	}
	others := make([]time.Duration, n-1)
	return Debts{others: &others}
}

// At returns debt i.
func (d *Debts) At(i int) time.Duration {
	if i == 0 {
		return d.first
	}
	return (*d.others)[i-1]
}

// Set sets debt i.
func (d *Debts) Set(i int, debt time.Duration) {
	if i == 0 {
		d.first = debt
	} else {
		(*d.others)[i-1] = debt
	}
}
