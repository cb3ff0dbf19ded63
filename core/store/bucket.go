package store

import (
	"context"
	"math"
	"time"
)

// Buckets keeps token buckets. core/memstore, core/redisstore and core/pgstore implement it;
// storetest.Buckets is the suite that every implementation must pass.
//
// A store does not count tokens. It keeps a debt for every bucket: a charge increases the debt,
// which shrinks as the store's own clock advances, by as much. The debt of a calendar's bucket
// ([Period]) stays until the end of a period, and is gone then. A bucket without debt is full, and
// need not be kept. With the debt, a store keeps the interval of the charge that made it, and the
// end of a hold.
//
// A charge that may have been carried out is not sent again: the error is ErrUnconfirmed then.
// Errors match ErrUnavailable or are the context's.
type Buckets interface {
	// TakeTokens charges all buckets of all requests or none, in one atomic step: it adds the cost of
	// every charge to its bucket if no bucket that it would charge is held and each of them stays
	// within its capacity. A charge without a cost only reads, and never prevents the others.
	//
	// Charges of several requests to the same bucket add up. They have the same interval, or the same
	// calendar. The reply has one debt for each charge, in order, after the step, and the end of the
	// period if the bucket is a calendar's. TakeTokens must not change the charges, which calls share.
	//
	// A store that cannot charge the buckets of all requests in one step returns an error that matches
	// ErrManySlots, whatever their state. It can if all of them have the same Home.
	TakeTokens(ctx context.Context, r TokenRequest, more ...TokenRequest) (TakeReply, error)

	// SettleTokens adds the cost of every charge, which may be negative, to its bucket, whatever the
	// debt and whether it is held. A debt stays between zero and the charge's capacity plus its
	// overdraft; the reply is not Allowed if a debt would have become more, and the other buckets are
	// settled all the same. A charge without a cost only reads.
	SettleTokens(ctx context.Context, r TokenRequest) (TakeReply, error)

	// HoldTokens holds the buckets of the charges for d, or until the end of an earlier hold if that
	// is later. Until then no charge with a cost is made to them, whatever its interval. Their debts
	// do not change. Costs have no meaning. A store that removes buckets for want of room removes no
	// held one: it refuses further holds with ErrFull.
	HoldTokens(ctx context.Context, r TokenRequest, d time.Duration) error

	// ResetTokens removes the buckets of the charges, which makes them full and ends their holds.
	ResetTokens(ctx context.Context, r TokenRequest) error
}

// QuickBuckets is a store of buckets in process memory whose calls never block, such as
// core/memstore's. It makes the most frequent decision, and settlement, with less to copy.
type QuickBuckets interface {
	Buckets

	// TakeQuickly is TakeTokens for a single charge without a Period. It returns the debt, and whether
	// the charge is allowed. If decided is false, for example because the bucket may be held, nothing
	// has changed: TakeTokens then decides, or returns the error.
	TakeQuickly(ctx context.Context, limiter, key string, c *Charge) (debt time.Duration, allowed, decided bool)

	// SettleQuickly is SettleTokens for a single charge without a Period.
	SettleQuickly(limiter, key string, c *Charge) (allowed, decided bool)
}

// TokenRequest is a limiter's request about the buckets of one of its keys.
type TokenRequest struct {
	Limiter, Key string
	// Home places the buckets: a store can charge the buckets of requests with the same Home in one
	// step. Nil stands for the limiter and the key themselves. The buckets of a key always have the
	// same Home.
	Home    *BucketHome
	Charges []Charge // each of another bucket
	// AtMost, if it is not zero, is for a single request: TakeTokens then charges every cost as many
	// times as all capacities allow, up to this number. None is a denial.
	AtMost int64
	// StandIn sends SettleTokens to the store's stand-in, for a decision whose TakeReply has StandIn.
	StandIn bool
}

// BucketHome is a limiter and one of its keys.
type BucketHome struct{ Limiter, Key string }

// InHome returns the request's Home, or its limiter and key if it has none.
func (r *TokenRequest) InHome() BucketHome {
	if r.Home == nil {
		return BucketHome{r.Limiter, r.Key}
	}
	return *r.Home
}

// Charge is the part of one limit in a request. No duration but the cost of a settlement is
// negative. A capacity with its overdraft is not longer than about forty years, so that a store may
// add a debt within it to the time of day.
type Charge struct {
	Bucket    string        // the bucket among those of its key; empty for a key's only one
	Cost      time.Duration // added to the debt
	Capacity  time.Duration // the largest debt that a charge may leave
	Overdraft time.Duration // by how much settlements may exceed the capacity
	Interval  time.Duration // in which one token comes back, positive; the unit of a debt
	// Fresh makes a bucket that was charged at another interval count as full. Without it, the number
	// of used tokens remains ([Charge.Convert]).
	Fresh bool
	// Period, if it is not nil, makes the bucket one of a calendar. Its debt is the number of used
	// tokens, a nanosecond each: it does not shrink, and is gone at the end of a period. Interval is 1
	// then, and Fresh has no meaning. A bucket is of a calendar always or never: one that was charged
	// otherwise counts as full.
	Period *Period
}

// Period has the periods of a calendar by the client's clock: the present one is from Begin to End,
// and the next one ends at Next, all in whole microseconds. The store finds the period of a bucket
// by its own clock ([Period.EndAt]), which may differ. A bucket with a debt keeps the end of the
// period in which it was first charged ([Charge.Used]).
type Period struct{ Begin, End, Next time.Time }

// EndAt returns the end of the period that includes an instant of the store's clock: the first of
// Begin, End and Next that is later. If the clock is off by more, EndAt counts on from there in
// steps of both periods, so that a bucket is not denied for longer than the two last, and does not
// lose its used tokens at once.
func (p *Period) EndAt(now time.Time) time.Time {
	end, both := p.Next, max(p.Next.Sub(p.Begin), time.Microsecond)
	switch {
	case now.Before(p.Begin):
		end = p.Begin
	case now.Before(p.End):
		end = p.End
	}
	since := now.Sub(end)
	into := since % both
	if into < 0 {
		into += both
	}
	return end.Add(since - into + both)
}

// Used returns the debt of a calendar's bucket, and how long its period lasts, if the bucket has
// used tokens of a period that ends after left. There is no debt if that period is over, or if its
// end is further away than two periods are long, as after a clock was set back by so much.
func (c *Charge) Used(tokens, left time.Duration, now time.Time) (debt, lasts time.Duration) {
	if tokens <= 0 || left <= 0 || left > c.Period.Next.Sub(c.Period.Begin) {
		return 0, c.Period.EndAt(now).Sub(now)
	}
	return min(tokens, c.Capacity+c.Overdraft), left
}

// Debt returns the debt of a bucket that will be full after left. It may be more than the capacity
// and the overdraft, if the bucket was charged with larger ones, or if the store's clock stepped
// back since: a decision then reports how long that lasts. A settlement limits the debt to them.
func (c *Charge) Debt(left time.Duration) time.Duration { return max(left, 0) }

// Convert returns the debt of a bucket that was charged at another interval: the same number of
// tokens, whole or in part, but no more than the capacity.
func (c *Charge) Convert(debt, interval time.Duration) time.Duration {
	if c.Fresh || interval <= 0 {
		return 0
	}
	// As Redis's scripts compute it, in numbers that are exact to 2^53.
	micros := float64(float64(debt/1000) * 1000) // the conversion keeps compilers from fusing it with the addition
	tokens := (micros + float64(debt%1000)) / float64(interval)
	converted := math.Ceil(tokens * float64(c.Interval))
	if converted >= float64(c.Capacity) {
		return c.Capacity
	}
	return time.Duration(converted)
}

// Fits reports whether a bucket with this debt can bear the charge.
func (c *Charge) Fits(debt time.Duration) bool { return c.Cost == 0 || c.Cost <= c.Capacity-debt }

// TakeReply is the answer to TakeTokens and SettleTokens.
type TakeReply struct {
	Allowed bool
	// Cached means that a denial comes from the store's denial cache.
	Cached bool
	// StandIn means that the store's stand-in made the decision.
	StandIn bool
	// Leased means that the store took the tokens earlier, in a block for later decisions.
	Leased bool
	// Taken is how many times the costs were charged, for a request with AtMost.
	Taken int64
	// Held is how long the buckets are still held: the longest time of all.
	Held  time.Duration
	Debts Debts
}

// Debts are the debts of the buckets of charges, in their order, and the ends of their periods. Up
// to two debts without a period need no allocation.
type Debts struct {
	first, second time.Duration
	more          *moreDebts // or nil
}

type moreDebts struct {
	others []time.Duration // the third and the following ones
	ends   []time.Duration // of periods, nil if there are none
}

// OneDebt returns the Debts of one charge.
func OneDebt(d time.Duration) Debts { return Debts{first: d} }

// MakeDebts returns n debts of zero.
func MakeDebts(n int) Debts {
	if n < 3 {
		return Debts{}
	}
	return Debts{more: &moreDebts{others: make([]time.Duration, n-2)}}
}

// At returns debt i.
func (d *Debts) At(i int) time.Duration {
	switch i {
	case 0:
		return d.first
	case 1:
		return d.second
	}
	return d.more.others[i-2]
}

// Set sets debt i.
func (d *Debts) Set(i int, debt time.Duration) {
	switch i {
	case 0:
		d.first = debt
	case 1:
		d.second = debt
	default:
		d.more.others[i-2] = debt
	}
}

// End returns how long the period of charge i lasts from the decision on; 0 without a [Period].
func (d *Debts) End(i int) time.Duration {
	if d.more == nil || d.more.ends == nil {
		return 0
	}
	return d.more.ends[i]
}

// SetEnd sets how long the period of charge i, of n charges, lasts.
func (d *Debts) SetEnd(i, n int, end time.Duration) {
	if d.more == nil {
		d.more = new(moreDebts)
	}
	if d.more.ends == nil {
		d.more.ends = make([]time.Duration, n)
	}
	d.more.ends[i] = end
}
