package tokenbucket

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// MaxHold is the longest time for which a key can be held.
const MaxHold = 30 * 24 * time.Hour

// Hold denies the key all tokens for d, in all processes that share the store. Use it if the
// service that is called has said that it takes no calls of this key for that time. Waiters wait
// until the hold has ended. A hold that lasts longer stays; [Limiter.Reset] ends it. During a hold
// the key's tokens come back. A hold is on the key's buckets ([Limits]), so a plan without any of
// these buckets ends it.
//
// It returns [ErrInvalidHold] if d is not between 1 ms and [MaxHold], [ErrNoLimits] for a key
// whose limits are not enforced ([Limiter.SetEnforcement]), or which has none and so no bucket to
// hold, and otherwise the errors of [Limiter.AllowN].
func (l *Limiter) Hold(ctx context.Context, key string, d time.Duration) error {
	if d < time.Millisecond || d > MaxHold {
		return fmt.Errorf("%w: %v is not between 1ms and %v", ErrInvalidHold, d, MaxHold)
	}
	plan, err := l.holdable(ctx, key)
	if err != nil {
		return err
	}
	return l.hold(ctx, key, plan, d)
}

// holdable returns the limits of a key that can be held.
func (l *Limiter) holdable(ctx context.Context, key string) (*fixedPlan, error) {
	plan, err := l.decidable(ctx, key)
	if err == nil && (len(plan.meters) == 0 || plan.mode == Shadow) {
		err = ErrNoLimits
	}
	return plan, err
}

func (l *Limiter) hold(ctx context.Context, key string, plan *fixedPlan, d time.Duration) error {
	return l.buckets.HoldTokens(ctx, l.request(key, plan.charges(1)), d)
}

// Escalation sets for how long a key is held that exceeds its limits again and again. [Escalate]
// makes one.
type Escalation struct {
	first, longest time.Duration
	factor         float64
}

// Escalate holds a key for first, and then each time longer by factor, up to longest: with a
// minute, 2 and an hour for 1, 2, 4 ... 32 and 60 minutes. With a factor of 1 each hold lasts for
// first. One offence is forgotten each day. It panics unless 1 ms <= first <= longest <= [MaxHold],
// factor is between 1 and 1000, and longest is reached within 1,000 offences.
func Escalate(first time.Duration, factor float64, longest time.Duration) Escalation {
	if first < time.Millisecond || longest < first || longest > MaxHold || !(factor >= 1 && factor <= 1000) {
		panic(fmt.Sprintf(
			"tokenbucket: Escalate: %v, %v, %v are not 1ms <= first <= longest <= %v with a factor of 1 to 1000",
			first, factor, longest, MaxHold))
	}
	e := Escalation{first, longest, factor}
	if e.levels() > maxLevels {
		panic(fmt.Sprintf("tokenbucket: Escalate: %v becomes %v after more than %d times %v",
			first, longest, maxLevels, factor))
	}
	return e
}

// maxLevels keeps offences within the capacity of a bucket.
const maxLevels = 1000

// levels is how many holds there are until the longest one.
func (e Escalation) levels() int64 {
	if e.factor == 1 || e.first == e.longest {
		return 1
	}
	levels := math.Ceil(math.Log(float64(e.longest)/float64(e.first))/math.Log(e.factor)-1e-9) + 1
	return int64(min(levels, maxLevels+1))
}

// after returns for how long a key is held at its nth offence.
func (e Escalation) after(n int64) time.Duration {
	d := float64(e.first) * math.Pow(e.factor, float64(n-1))
	if d >= float64(e.longest) {
		return e.longest
	}
	return time.Duration(d)
}

// meters returns two meters that count offences as tokens. The token of turn comes back after the
// first hold, which is the shortest: so only one caller at a time holds a key. One token of
// offences comes back each day.
func (e Escalation) meters() (turn, offences meter) {
	return newMeter(Per(1, e.first.Truncate(time.Microsecond)), "", internalBucket+"turn"),
		newMeter(PerDay(1).Burst(e.levels()), "", internalBucket+"offences")
}

// HoldAgain holds a key that exceeds its limits, longer than the last time, and returns for how
// long. If the key is held already, it returns zero, and counts no offence. If several callers, in
// any process, call it together for a key, one holds the key, and the others get zero. For an
// attempt that is denied because of open ones, use [Reservation.HoldLater].
//
// Errors are those of [Limiter.Hold]. After an error the key is not held, unless it matches
// store.ErrUnconfirmed, and the offence is taken back.
func (l *Limiter) HoldAgain(ctx context.Context, key string, e Escalation) (time.Duration, error) {
	if e == (Escalation{}) {
		return 0, fmt.Errorf("%w: an Escalation that Escalate has not made", ErrInvalidHold)
	}
	plan, err := l.holdable(ctx, key)
	if err != nil {
		return 0, err
	}
	reply, err := l.buckets.TakeTokens(ctx, l.request(key, plan.charges(0)))
	if err != nil || reply.Held > 0 {
		return 0, err
	}
	offence, d, err := l.offend(ctx, key, e)
	if err != nil || d == 0 {
		return 0, err
	}
	if err := l.hold(ctx, key, plan, d); err != nil {
		for i := range offence.Charges {
			offence.Charges[i].Cost *= -1
		}
		_ = l.settleOnce(ctx, offence.Key, offence.Charges, offence.StandIn)
		return 0, err
	}
	return d, nil
}

// offend counts an offence, and returns for how long it holds the key: zero if it is another
// caller's turn.
func (l *Limiter) offend(ctx context.Context, key string, e Escalation) (store.TokenRequest, time.Duration, error) {
	turn, offences := e.meters()
	r := l.request(key, []store.Charge{turn.charge(1), offences.charge(1)})
	reply, err := l.buckets.TakeTokens(ctx, r)
	switch {
	case err != nil:
		return r, 0, err
	case reply.StandIn: // it has no record of earlier offences
		r.StandIn = true
		return r, e.first, nil
	case reply.Allowed:
		return r, e.after(e.levels() - offences.remaining(reply.Debts.At(1))), nil
	}
	// Either the offences have reached their maximum, or it is not the caller's turn.
	r = l.request(key, []store.Charge{turn.charge(1)})
	if reply, err = l.buckets.TakeTokens(ctx, r); err != nil || !reply.Allowed {
		return r, 0, err
	}
	return r, e.after(e.levels() + 1), nil
}
