package tokenbucket

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ReserveOption is an optional setting of [Limiter.Reserve] and [Limiter.ReserveN].
type ReserveOption func(*Reservation)

// AsAttempt reserves for an attempt, which is charged only if it fails, such as one to log in:
// [Reservation.Settle] charges it, [Reservation.Cancel] does not. The attempt is open until one of
// them is called. While it is open, its tokens are reserved and not used, in all processes that
// share the store. A denial that is due to open attempts alone is [Decision.Pending], and
// [LimitState.Reserved] counts their tokens.
//
// A token stays reserved for the time in which it comes back, 30 s at most, one token after the
// other. An attempt that lasts longer, or whose process died, counts as used from then on. Settle
// and Cancel each send one call, also if no estimate changes.
//
// With an escalation, [Reservation.HoldLater] has Settle hold a key whose attempts have failed, if
// its limits are enforced.
func AsAttempt(hold *Escalation) ReserveOption {
	return func(r *Reservation) { r.attempt, r.hold = true, hold }
}

const (
	// openFor is the longest time for which a token counts as reserved. Without a bound, a key whose
	// attempts are left open one after the other would never be held.
	openFor = 30 * time.Second

	openBucket    = internalBucket + "open/"
	refusedBucket = internalBucket + "refused"
)

// open returns the charge that records n reserved tokens, beside the charge to the limit. Its
// bucket never denies, since it has room for twice the limit's burst.
func (m *meter) open(n int64) store.Charge {
	each := m.openEach()
	return store.Charge{
		Bucket: openBucket + m.bucket,
		Cost:   time.Duration(n) * each, Capacity: time.Duration(2*m.burst) * each, Interval: each,
	}
}

// openEach is how long a token counts as reserved.
func (m *meter) openEach() time.Duration {
	return min(max(m.window/time.Duration(m.burst), 1), openFor)
}

// refused returns the charge that marks, for d, that an attempt was refused because of open ones.
func refused(d time.Duration) store.Charge {
	return store.Charge{Bucket: refusedBucket, Cost: d, Capacity: max(d, MaxHold), Interval: time.Microsecond}
}

// attemptCharges returns the charges to the limits, and the charges that record these as reserved.
func (p *fixedPlan) attemptCharges(reserved []store.Charge) []store.Charge {
	charges := make([]store.Charge, 0, 2*len(reserved))
	charges = append(charges, reserved...)
	for i := range p.meters {
		m := &p.meters[i]
		charges = append(charges, m.open(int64(reserved[i].Cost/m.interval)))
	}
	return charges
}

// takeAttempt reserves the tokens of an attempt.
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

// affordsWithoutOpen reports whether the cost could be afforded if all open attempts ended without
// a charge.
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
// ([Decision.Pending]). Its key has exceeded its limits only if the open ones fail:
//   - If all of them fail, Settle of the last one holds the key, and returns the errors of
//     HoldAgain.
//   - If Cancel is called for one of them before that, the denial is forgiven, since there was
//     room.
//   - If one of them is never settled, its tokens count as used after a while, and the next denial
//     is not pending.
//
// It returns for how long it holds the key: zero, unless all of them have failed already. It does
// nothing for other reservations, and for a reservation without an escalation. Errors are those of
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
	// The mark lasts until the open ones count as used, however often it is set.
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

// anyDebt reports whether one of the debts from first to before last is positive.
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
	d, err := r.limiter.HoldAgain(ctx, r.key, *r.hold)
	if errors.Is(err, ErrNoLimits) { // since the reservation
		return 0, nil
	}
	return d, err
}

// forgive forgets that attempts were refused because of open ones.
func (r *Reservation) forgive(ctx context.Context) error {
	_, err := r.limiter.settlement(ctx, r.key, []store.Charge{forgiven()}, r.standIn)
	return err
}

// forgiven returns the charge that removes the mark of refused.
func forgiven() store.Charge {
	c := refused(MaxHold)
	c.Cost *= -1
	return c
}

// endAttempt settles an attempt. The corrections, if there are any, give its tokens back. The
// caller holds mu.
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
