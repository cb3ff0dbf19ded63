package store

import (
	"context"
	"math"
	"time"
)

// Buckets keeps token buckets. core/memstore, core/redisstore and core/pgstore implement it;
// storetest.Buckets is the suite that every implementation must pass.
//
// A store knows no tokens: it keeps, for every bucket, a debt, which a charge increases and which
// shrinks as the store's own clock advances, by as much; that of a calendar ([Period]) stays until
// the end of a period, and is gone then. A bucket without debt is full, and need not be kept. With
// the debt it keeps the interval of the charge that made it, and, for as long as a bucket is held,
// when that ends.
//
// A charge that may have been carried out is not sent again: the error is ErrUnconfirmed then.
// Errors match ErrUnavailable or are the context's.
type Buckets interface {
	// TakeTokens adds the cost of every charge to its bucket, if no bucket that it would charge is
	// held and each of them stays within its capacity. Otherwise it changes nothing: all charges of
	// all requests or none, in one atomic step. A charge without a cost only reads, and is never
	// why others are not made. Charges of several requests to the same bucket add up; they are made
	// at the same interval, or of the same calendar. The debts of the reply are those after the
	// step, one for each charge, in order, and with those of calendars are the ends of their
	// periods. It must not change the charges, which calls share.
	//
	// A store that cannot charge the buckets of all requests in one step returns an error that
	// matches ErrManySlots, whatever their state. It can if all of them have the same Home.
	TakeTokens(ctx context.Context, r TokenRequest, more ...TokenRequest) (TakeReply, error)

	// SettleTokens adds the cost of every charge, which may be negative, to its bucket, whatever
	// the debt and whether it is held: no debt becomes less than zero, nor more than the charge's
	// capacity and overdraft. The reply is not Allowed if a debt would have become more; the others
	// are as if it had not. A charge without a cost only reads.
	SettleTokens(ctx context.Context, r TokenRequest) (TakeReply, error)

	// HoldTokens holds the buckets of the charges for d, or for longer if they are: no charge with
	// a cost is made to them until then, whatever its interval. Their debts do not change. Costs
	// have no meaning. A store that forgets buckets for want of room forgets no hold: it refuses
	// further ones with ErrFull.
	HoldTokens(ctx context.Context, r TokenRequest, d time.Duration) error

	// ResetTokens removes the buckets of the charges, which makes them full and ends their holds.
	ResetTokens(ctx context.Context, r TokenRequest) error
}

// QuickBuckets is a store of buckets in process memory, whose calls wait for nothing, as that of
// core/memstore. It makes the decision, and the settlement, that most are with less to copy.
type QuickBuckets interface {
	Buckets

	// TakeQuickly is TakeTokens with an only charge, which has no Period, and returns the debt
	// and whether it is allowed. Otherwise, as when the bucket may be held, decided is false and
	// nothing has changed: TakeTokens then decides, or returns the error.
	TakeQuickly(ctx context.Context, limiter, key string, c *Charge) (debt time.Duration, allowed, decided bool)

	// SettleQuickly is SettleTokens likewise.
	SettleQuickly(limiter, key string, c *Charge) (allowed, decided bool)
}

// TokenRequest is what a limiter asks of the buckets of one of its keys.
type TokenRequest struct {
	Limiter, Key string
	// Home is what the buckets are kept with: those of requests with the same Home can be charged
	// in one step on every store. Nil is the limiter and the key themselves. The buckets
	// of a key always have the same one.
	Home    *BucketHome
	Charges []Charge // each of another bucket
	// AtMost, if it is not zero, makes TakeTokens charge every cost as many times as all capacities
	// allow, up to this number; none is a denial. It is for a single request.
	AtMost int64
	// StandIn sends SettleTokens to where a TakeReply with StandIn was made.
	StandIn bool
}

// BucketHome is a limiter and one of its keys.
type BucketHome struct{ Limiter, Key string }

// InHome returns the request's Home, or what stands for none.
func (r *TokenRequest) InHome() BucketHome {
	if r.Home == nil {
		return BucketHome{r.Limiter, r.Key}
	}
	return *r.Home
}

// Charge is what one limit asks of its bucket. No duration but the cost of a settlement is
// negative, and no capacity with its overdraft is longer than about forty years: a store may add a
// debt within it to the time of day.
type Charge struct {
	Bucket    string        // names the bucket among those of its key; empty for a key's only one
	Cost      time.Duration // what the charge adds to the debt
	Capacity  time.Duration // the largest debt that a charge may leave
	Overdraft time.Duration // how much larger a debt may become by settlements
	Interval  time.Duration // in which one token comes back, positive: what a debt is counted in
	// Fresh makes a bucket that was charged at another interval count as full. Otherwise as many
	// tokens remain used ([Charge.Convert]).
	Fresh bool
	// Period, if it is not nil, makes the bucket one of a calendar: its debt is the tokens that
	// were used, of a nanosecond each, does not shrink, and is gone at the end of a period.
	// Interval is 1 then, and Fresh means nothing. A bucket is of a calendar always or never: one
	// that was charged otherwise counts as full.
	Period *Period
}

// Period is what the client's clock says of the periods of a calendar: the present one is from
// Begin to End, and the next one ends at Next, all in whole microseconds. Which of them a bucket is
// in, is the store's to say by its own clock ([Period.EndAt]), which may be another. A bucket with
// a debt keeps the end of the period in which it was first charged ([Charge.Used]).
type Period struct{ Begin, End, Next time.Time }

// EndAt returns when the period ends that includes an instant of the store's clock: at Begin, End
// or Next, of which it is the first that is later. A clock that is off by more counts from there on
// in steps of both periods, so that it neither denies for longer than those last, nor forgets at
// once what was used.
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

// Used returns the debt of a bucket of a calendar, and for how long its period lasts, when the
// bucket has used tokens of a period that lasts for left. If that is over there is no debt, nor if
// the end is further away than two periods are long, as after a clock was set back by so much.
func (c *Charge) Used(tokens, left time.Duration, now time.Time) (debt, lasts time.Duration) {
	if tokens <= 0 || left <= 0 || left > c.Period.Next.Sub(c.Period.Begin) {
		return 0, c.Period.EndAt(now).Sub(now)
	}
	return min(tokens, c.Capacity+c.Overdraft), left
}

// Debt returns the debt of a bucket that will be full after left. It may be more than the capacity
// and the overdraft, of a bucket that was charged with larger ones, or before the store's clock
// stepped back: a decision then tells how long that lasts. A settlement leaves no more than these.
func (c *Charge) Debt(left time.Duration) time.Duration { return max(left, 0) }

// Convert returns the debt of a bucket that was charged at another interval: as many tokens, of
// which some may have come back in part, but no more than the capacity.
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
	// Leased means that the tokens were taken from the store before, for whoever would ask.
	Leased bool
	// Taken is how many times the costs were charged, for a request with AtMost.
	Taken int64
	// Held is for how long the buckets are held, the one that is held for longest.
	Held  time.Duration
	Debts Debts
}

// Debts are the debts of the buckets of charges, in their order, and the ends of their periods. Two
// without a period need no allocation.
type Debts struct {
	first, second time.Duration
	more          *moreDebts // or nil
}

type moreDebts struct {
	others []time.Duration // the third, and those that follow
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

// End returns for how long the period of charge i lasts from the decision on, 0 for one without a
// [Period].
func (d *Debts) End(i int) time.Duration {
	if d.more == nil || d.more.ends == nil {
		return 0
	}
	return d.more.ends[i]
}

// SetEnd sets for how long the period of charge i lasts, of n charges.
func (d *Debts) SetEnd(i, n int, end time.Duration) {
	if d.more == nil {
		d.more = new(moreDebts)
	}
	if d.more.ends == nil {
		d.more.ends = make([]time.Duration, n)
	}
	d.more.ends[i] = end
}
