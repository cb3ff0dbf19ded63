package tokenbucket

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ReserveOption is an optional setting of [Limiter.Reserve] and [Limiter.ReserveN].
type ReserveOption func(*Reservation)

// AsAttempt reserves for an attempt, which is charged only if it fails, such as one to log in:
// [Reservation.Settle] charges it, [Reservation.Cancel] does not. While it is open, until one of
// them is called, its tokens are reserved and not used, in all processes that share the store: a
// denial that is due to them alone is [Decision.Pending], and [LimitState.Reserved] counts them.
//
// A token stays reserved for as long as it takes to come back, 30 s at most, and one after the
// other: an attempt that lasts longer counts as used from then on, and so does one whose process
// died. Settle and Cancel each send one call, also if no estimate changes.
//
// With an escalation, [Reservation.HoldLater] has Settle hold a key whose attempts have failed.
func AsAttempt(hold *Escalation) ReserveOption {
	return func(r *Reservation) { r.attempt, r.hold = true, hold }
}

const (
	// openFor bounds for how long a token counts as reserved: a key at which one attempt after the
	// other is left open would never be held.
	openFor = 30 * time.Second

	openBucket    = internalBucket + "open/"
	refusedBucket = internalBucket + "refused"
)

// open returns the charge that n reserved tokens are kept by, beside that of the limit: to a bucket
// that never denies, since it has room for twice what the limit has.
func (m *meter) open(n int64) store.Charge {
	each := m.openEach()
	return store.Charge{
		Bucket: openBucket + m.bucket, Cost: time.Duration(n) * each, Capacity: time.Duration(2*m.burst) * each, Interval: each,
	}
}

// openEach is for how long a token counts as reserved.
func (m *meter) openEach() time.Duration {
	return min(max(m.window/time.Duration(m.burst), 1), openFor)
}

// refused returns the charge for the mark that an attempt was refused because of open ones, for d.
func refused(d time.Duration) store.Charge {
	return store.Charge{Bucket: refusedBucket, Cost: d, Capacity: max(d, MaxHold), Interval: time.Microsecond}
}

// attemptCharges returns the charges of limits, and of what they reserve.
func (p *fixedPlan) attemptCharges(reserved []store.Charge) []store.Charge {
	charges := make([]store.Charge, 0, 2*len(reserved))
	charges = append(charges, reserved...)
	for i := range p.meters {
		m := &p.meters[i]
		charges = append(charges, m.open(int64(reserved[i].Cost/m.interval)))
	}
	return charges
}

// takeAttempt takes what an attempt reserves.
func (l *Limiter) takeAttempt(ctx context.Context, r *Reservation, plan *fixedPlan) error {
	request := l.request(r.key, plan.attemptCharges(r.reserved))
	if err := l.take(ctx, plan, &request, nil, &r.Decision); err != nil {
		return err
	}
	r.attempts = len(plan.meters) > 0
	r.Pending = !r.Allowed && r.Held == 0 && r.affordsWithoutOpen()
	return nil
}

// reservedAt returns how many tokens of a limit are reserved by attempts.
func (d *Decision) reservedAt(i int) int64 {
	if !d.attempts {
		return 0
	}
	each := d.plan.meters[i].openEach()
	return int64((d.debts.At(len(d.plan.meters)+i) + each - 1) / each)
}

// without returns the debt of a limit without n tokens.
func (m *meter) without(debt time.Duration, n int64) time.Duration {
	if n >= int64(debt/m.interval)+1 {
		return 0
	}
	return max(debt-time.Duration(n)*m.interval, 0)
}

// affordsWithoutOpen reports whether the cost could be afforded if all open attempts ended without a
// charge.
func (d *Decision) affordsWithoutOpen() bool {
	for i := range d.plan.meters {
		m := &d.plan.meters[i]
		if m.wait(m.without(d.debts.At(i), d.reservedAt(i)), (*d.asked)[i].Cost, d.debts.End(i)) > 0 {
			return false
		}
	}
	return true
}

// HoldLater is [Limiter.HoldAgain] for an attempt that was denied because of open ones
// ([Decision.Pending]). Its key has exceeded its limits only if these fail: when the last of them is
// settled, its Settle holds the key, and returns the errors of HoldAgain. A Cancel before that
// forgives the denial, since there was room. If an attempt is never settled, its tokens count as
// used after a while, and the next denial is not pending.
//
// It returns for how long the key is held now: zero, unless all of them have failed already. It does
// nothing for other reservations, and for those without an escalation. Errors are those of
// HoldAgain.
func (r *Reservation) HoldLater(ctx context.Context) (time.Duration, error) {
	if !r.Pending || r.hold == nil || r.Source == FromCache { // the denial that was cached has done it
		return 0, nil
	}
	n := len(r.plan.meters)
	longest := time.Duration(0)
	charges := append(r.plan.attemptCharges(make([]store.Charge, n)), store.Charge{})
	for i := range r.plan.meters {
		charges[i] = r.plan.meters[i].charge(0)
		longest = max(longest, r.debts.At(n+i))
	}
	// It lasts until the open ones count as used, however often it is set.
	charges[2*n] = refused(longest)
	charges[2*n].Capacity = longest
	reply, err := r.limiter.settlement(ctx, r.key, charges, r.standIn)
	if err != nil || anyDebt(&reply.Debts, n, 2*n) {
		return 0, err
	}
	for i := range r.plan.meters {
		if m := &r.plan.meters[i]; m.wait(reply.Debts.At(i), r.reserved[i].Cost, reply.Debts.End(i)) > 0 {
			return r.holdNow(ctx)
		}
	}
	return 0, r.forgive(ctx)
}

// anyDebt reports whether any of the debts from first to last has not gone.
func anyDebt(debts *store.Debts, first, last int) bool {
	for i := first; i < last; i++ {
		if debts.At(i) > 0 {
			return true
		}
	}
	return false
}

// holdNow holds the key of attempts that have failed, and forgets that others were refused.
func (r *Reservation) holdNow(ctx context.Context) (time.Duration, error) {
	if err := r.forgive(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
	defer cancel()
	return r.limiter.HoldAgain(ctx, r.key, *r.hold)
}

// forgive forgets that attempts were refused because of open ones.
func (r *Reservation) forgive(ctx context.Context) error {
	_, err := r.limiter.settlement(ctx, r.key, []store.Charge{forgiven()}, r.standIn)
	return err
}

// forgiven returns what removes the mark of refused.
func forgiven() store.Charge {
	c := refused(MaxHold)
	c.Cost *= -1
	return c
}

// endAttempt settles an attempt, whose tokens are given back by the corrections, if any. The caller
// holds mu.
func (r *Reservation) endAttempt(ctx context.Context, corrections []store.Charge, cancelled bool) error {
	charges := make([]store.Charge, 0, len(corrections)+len(r.reserved)+1)
	charges = append(charges, corrections...)
	first := len(charges)
	for i := range r.plan.meters {
		m := &r.plan.meters[i]
		c := m.open(int64(r.reserved[i].Cost / m.interval))
		c.Cost *= -1
		charges = append(charges, c)
	}
	last := len(charges)
	switch {
	case r.hold == nil:
	case cancelled:
		charges = append(charges, forgiven())
	default:
		charges = append(charges, refused(0))
	}
	reply, err := r.limiter.settlement(ctx, r.key, charges, r.standIn)
	switch {
	case err != nil:
		return err
	case !reply.Allowed:
		err = ErrOverdraft
	}
	if r.hold != nil && !cancelled && reply.Debts.At(last) > 0 && !anyDebt(&reply.Debts, first, last) {
		if _, holdErr := r.holdNow(ctx); err == nil {
			err = holdErr
		}
	}
	return err
}
