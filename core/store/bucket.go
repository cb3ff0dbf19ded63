package store

import "context"

// Buckets keeps token buckets. core/memstore and core/redisstore implement it; storetest.Buckets is
// the suite that every implementation must pass.
//
// A store knows no tokens: it keeps, for every bucket, a debt in time (see [Span]), which shrinks by
// one microsecond per microsecond of the store's own clock, and which a charge increases. A bucket
// without debt is full, and need not be kept.
type Buckets interface {
	// TakeTokens adds the cost of every charge to its bucket, among the buckets of a key of the
	// limiter with that name, if each of them stays within its capacity. Otherwise it changes
	// nothing: all charges or none, in one atomic step. A charge without a cost only reads. It returns
	// the debts after the step, one for each charge, in order. It must not change the charges, which
	// calls share.
	//
	// An implementation must not send a charge again once it may have been carried out; it returns
	// ErrUnconfirmed then. Errors match ErrUnavailable or are the context's.
	TakeTokens(ctx context.Context, limiter, key string, charges []Charge) (TakeReply, error)

	// ResetTokens removes the named buckets of a key, which makes them full.
	ResetTokens(ctx context.Context, limiter, key string, buckets []string) error
}

// Charge is what one limit asks of its bucket.
type Charge struct {
	Bucket   string // names the bucket among those of its key; empty for a key's only one
	Cost     Span   // what the charge adds to the debt
	Capacity Span   // the largest debt that the bucket may have
	Den      int64  // the fractions of Cost, of Capacity and of the reply count in 1/Den µs; at least 1
}

// TakeReply is the answer to TakeTokens.
type TakeReply struct {
	Allowed bool
	// Remembered means that a denial comes from the store's denial cache.
	Remembered bool
	Debts      Debts
}

// Debts are the debts of the buckets of charges, in their order. A single one needs no allocation.
type Debts struct {
	first  Span
	others *[]Span
}

// OneDebt returns the Debts of one charge.
func OneDebt(s Span) Debts { return Debts{first: s} }

// MakeDebts returns n debts of zero.
func MakeDebts(n int) Debts {
	if n < 2 {
		return Debts{}
	}
	others := make([]Span, n-1)
	return Debts{others: &others}
}

// At returns debt i.
func (d *Debts) At(i int) Span {
	if i == 0 {
		return d.first
	}
	return (*d.others)[i-1]
}

// Set sets debt i.
func (d *Debts) Set(i int, s Span) {
	if i == 0 {
		d.first = s
	} else {
		(*d.others)[i-1] = s
	}
}

// Span is a length of time: whole microseconds and a fraction of the next one, whose denominator
// is a [Charge]'s Den. The fraction makes rates exact whose interval is no whole number of
// microseconds (3 per second), with integers alone.
type Span struct {
	Micros int64
	Frac   int64 // 0 <= Frac < Den
}

// Exceeds reports whether s is longer than limit.
func (s Span) Exceeds(limit Span) bool {
	return s.Micros > limit.Micros || s.Micros == limit.Micros && s.Frac > limit.Frac
}

// Plus returns the sum of two spans of the same denominator.
func (s Span) Plus(t Span, den int64) Span {
	sum := Span{s.Micros + t.Micros, s.Frac + t.Frac}
	if sum.Frac >= den {
		sum.Micros++
		sum.Frac -= den
	}
	return sum
}

// Level is what a store keeps of a bucket: the moment, on the store's clock, at which its debt
// will be gone.
type Level struct {
	Empties Span  // time of the store's clock
	Den     int64 // the denominator that Empties.Frac was written with
}

// Debt returns what is left of the bucket's debt at time now, in the denominator of c and never
// more than c's capacity: a clock that steps back must not lock a key out.
func (l Level) Debt(now int64, c *Charge) Span {
	debt := Span{l.Empties.Micros - now, l.Empties.Frac}
	if debt.Micros < 0 {
		return Span{}
	}
	if l.Den != c.Den && debt.Frac > 0 { // written under another plan: round up
		debt = Span{debt.Micros + 1, 0}
	}
	if debt.Exceeds(c.Capacity) {
		return c.Capacity
	}
	return debt
}

// Charged returns the debt with the charge added, and whether that stays within the capacity.
func (c *Charge) Charged(debt Span) (Span, bool) {
	sum := debt.Plus(c.Cost, c.Den)
	return sum, !sum.Exceeds(c.Capacity)
}
