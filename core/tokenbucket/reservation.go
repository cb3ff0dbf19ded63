package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Cost is a number of tokens for each unit. The unit of a limit is its name, or the one of
// [Limit.Counts]. A unit that is not named costs nothing, and a cost of zero is always allowed. To
// charge nothing but the actual use, estimate 1, so that requests are denied while nothing is left.
type Cost map[string]int64

// Reserve takes an estimate of a cost before the work begins: all of it, or nothing. At the end,
// the actual cost replaces the estimate:
//
//	r, err := limiter.Reserve(ctx, "team-7", tokenbucket.Cost{"requests": 1, "tokens": 1_800})
//	if err != nil || !r.Allowed {
//		return ...
//	}
//	defer r.Settle(ctx)
//	...
//	r.Use("tokens", usage.Total) // may be called again, as a stream grows
//
// A reservation that is not settled, because its process died, stays charged as estimated. Its
// tokens come back as all tokens do; those of a calendar ([Monthly]) at the end of the period,
// after which nothing is settled. An estimate above the burst of a limit is reduced to the burst,
// since it would always be denied; [Reservation.Reduced] reports it.
//
// A denial is no error: Allowed is false, nothing was charged, and the other methods of the
// reservation do nothing. Errors are those of [Limiter.AllowN], [ErrInvalidCost] for a negative
// cost, and [ErrUnknownUnit] for a unit that no limit of the key counts. A key without limits
// accepts all units.
//
// In [Shadow] a reservation that would have been denied, or fails with another error than that of a
// negative cost, is allowed ([Decision.Shadow]). Use, Settle and Cancel of it do nothing and return
// nil.
func (l *Limiter) Reserve(ctx context.Context, key string, cost Cost, opts ...ReserveOption) (*Reservation, error) {
	plan, rule, err := l.limits(ctx, key)
	if err != nil {
		return nil, err
	}
	r := l.reservation(key, plan, opts)
	if r.reserved, err = plan.estimate(cost, &r.reduced); err != nil {
		if errors.Is(err, ErrInvalidCost) {
			return nil, err
		}
		if plan, err = plan.passing(err); err != nil {
			return nil, err
		}
	}
	rule.decideCandidate(ctx, key, func(m *meter) int64 { return cost[m.unit] })
	return l.reserve(ctx, r, plan)
}

// ReserveN takes n tokens of every limit of the key's plan, or none of any, as [Limiter.AllowN]
// does and with its errors. It is for callers without units, which give the tokens back or keep
// them.
func (l *Limiter) ReserveN(ctx context.Context, key string, n int64, opts ...ReserveOption) (*Reservation, error) {
	if n < 0 {
		return nil, invalidCost("ReserveN", n, 0)
	}
	plan, rule, err := l.limits(ctx, key)
	if err != nil {
		return nil, err
	}
	if err := plan.affords(n); err != nil {
		if plan, err = plan.passing(err); err != nil {
			return nil, err
		}
	}
	r := l.reservation(key, plan, opts)
	r.reserved = plan.charges(n)
	rule.decideCandidate(ctx, key, func(*meter) int64 { return n })
	return l.reserve(ctx, r, plan)
}

func (l *Limiter) reservation(key string, plan *fixedPlan, opts []ReserveOption) *Reservation {
	r := &Reservation{limiter: l, key: key}
	option.Apply(r, opts)
	if plan.dated {
		r.at = time.Now()
	}
	return r
}

func (l *Limiter) reserve(ctx context.Context, r *Reservation, plan *fixedPlan) (*Reservation, error) {
	if plan.mode == Shadow {
		r.hold = nil
	}
	var err error
	if r.attempt {
		err = l.takeAttempt(ctx, r, plan)
	} else {
		err = l.takeOnce(ctx, r.key, plan, r.reserved, &r.Decision)
	}
	if err != nil {
		return nil, err
	}
	r.settled = !r.Allowed
	return r, nil
}

// estimate returns the charges of a cost, each of a burst at most. They are no part of the
// reservation, since a store may keep the charges that it has denied.
func (p *fixedPlan) estimate(cost Cost, reduced *bool) ([]store.Charge, error) {
	charges, known := make([]store.Charge, len(p.meters)), 0
	for i := range p.meters {
		m := &p.meters[i]
		n, ok := cost[m.unit]
		if n < 0 {
			return nil, invalidCost("Reserve", n, 0)
		}
		if ok && !p.counts(m.unit, i) {
			known++
		}
		*reduced = *reduced || n > m.burst
		charges[i] = m.charge(min(n, m.burst))
	}
	if known == len(cost) {
		return charges, nil
	}
	for unit, n := range cost { // a map takes long to walk through
		switch {
		case n < 0:
			return nil, invalidCost("Reserve", n, 0)
		case len(p.meters) > 0 && !p.counts(unit, len(p.meters)):
			return nil, fmt.Errorf("%w: %q", ErrUnknownUnit, unit)
		}
	}
	return charges, nil
}

// counts reports whether one of the first n limits of the plan counts a unit.
func (p *fixedPlan) counts(unit string, n int) bool {
	for i := range n {
		if p.meters[i].unit == unit {
			return true
		}
	}
	return false
}

// Reservation is the tokens that [Limiter.Reserve] or [Limiter.ReserveN] has taken. Its methods may
// be called concurrently.
type Reservation struct {
	Decision

	limiter  *Limiter
	key      string
	reserved []store.Charge // of the decision's plan
	at       time.Time      // zero unless one of them is of a calendar
	reduced  bool
	attempt  bool
	hold     *Escalation // of an attempt, or nil

	mu      sync.Mutex
	used    []int64 // of each limit, or unreported; nil before the first report
	settled bool

	// few backs the slices if there are few limits.
	few struct {
		corrections [1]store.Charge
		used        [2]int64
	}
}

// unreported stands for tokens whose use was not reported.
const unreported = -1

type reservationKey struct{}

// NewContext returns a context in which [FromContext] finds r. The ratelimit middleware does this
// for handlers.
func NewContext(ctx context.Context, r *Reservation) context.Context {
	return context.WithValue(ctx, reservationKey{}, r)
}

// FromContext returns the reservation of the request that ctx is of. In gin pass
// c.Request.Context(), not c: see package ginmw.
func FromContext(ctx context.Context) (*Reservation, bool) {
	r, _ := ctx.Value(reservationKey{}).(*Reservation)
	return r, r != nil
}

// Reduced reports whether an estimate was above the burst of a limit, and was reduced to it.
func (r *Reservation) Reduced() bool { return r.reduced }

// Use reports how many tokens of a unit were used so far. The last report counts, so it may be
// repeated as a stream grows. Nothing is sent before [Reservation.Settle].
//
// After an error n does not count. It returns:
//   - [ErrInvalidCost] if n is negative;
//   - [ErrUnknownUnit] if no limit counts the unit;
//   - [ErrSettled] after Settle or Cancel, and for a reservation that was denied.
func (r *Reservation) Use(unit string, n int64) error {
	if n < 0 {
		return invalidCost("Use", n, 0)
	}
	if r.Shadow {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.settled:
		return ErrSettled
	case len(r.plan.meters) > 0 && !r.plan.counts(unit, len(r.plan.meters)):
		return fmt.Errorf("%w: %q", ErrUnknownUnit, unit)
	}
	uses := r.uses()
	for i := range uses {
		if r.plan.meters[i].unit == unit {
			uses[i] = n
		}
	}
	return nil
}

// uses returns the used tokens of each limit. The caller holds mu.
func (r *Reservation) uses() []int64 {
	if r.used == nil {
		if n := len(r.plan.meters); n <= len(r.few.used) {
			r.used = r.few.used[:n]
		} else {
			r.used = make([]int64, n)
		}
		for i := range r.used {
			r.used[i] = unreported
		}
	}
	return r.used
}

// Settle replaces the estimates by the tokens that were used, for the units that [Reservation.Use]
// was called with; other estimates stay. Only the first call of Settle or Cancel counts; later ones
// do nothing, and return nil. If no estimate changes, nothing is sent. Nothing is settled of a
// limit that a change of plan has removed, or filled ([Limit.ResetOnChange]), of a calendar's period
// that is over, and while the limiter is [Off].
//
// Tokens that are given back may be taken at once. If the reservations of a key last longer than
// its bucket takes to refill, the key may so exceed its burst by as many.
//
// The caller cannot cancel it: the store is asked although ctx has ended, for 5 s at most. Use
// beyond the estimate may overdraw a bucket ([Limit.Overdraft]), and later requests wait until
// these tokens have come back. Errors are:
//   - [ErrOverdraft] if even more was used: the bucket is overdrawn as far as it may be, and the
//     rest is forgotten;
//   - one that matches store.ErrUnavailable: the estimates stay, or perhaps not if it matches
//     store.ErrUnconfirmed too. It is not sent again, so that nothing is settled twice.
func (r *Reservation) Settle(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settle(ctx, false)
}

// Cancel gives all estimates back, since nothing was begun. If Use has reported that something was
// used, it is Settle with nothing used of the other units. Its errors are those of Settle.
func (r *Reservation) Cancel(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.settled || r.Shadow {
		return nil
	}
	uses := r.uses()
	for i := range uses {
		uses[i] = max(uses[i], 0)
	}
	return r.settle(ctx, true)
}

// settle sends the differences between use and estimates. The caller holds mu.
func (r *Reservation) settle(ctx context.Context, cancelled bool) (err error) {
	if r.settled || r.Shadow {
		return nil
	}
	r.settled = true
	if r.limiter.Enforcement().Mode == Off {
		return nil
	}
	var charges []store.Charge
	if r.used != nil {
		charges = r.corrections()
	}
	switch {
	case r.attempts:
		err = r.endAttempt(ctx, charges, cancelled)
	case len(charges) == 0:
		return nil
	default:
		err = r.limiter.settleOnce(ctx, r.key, charges, r.standIn)
	}
	r.limiter.telemetry.Settled(ctx, settlementOf(err))
	return err
}

// settleTimeout bounds a settlement, since the caller's context does not end it. Stores have
// shorter timeouts of their own.
const settleTimeout = 5 * time.Second

// settlements has the context of a limiter's settlements. All that begin within settleTogether
// share one: a timer for each would take longer than all other work of a client for it.
type settlements struct {
	mu    sync.Mutex
	ends  context.Context
	began time.Time
}

const settleTogether = time.Second

func (s *settlements) context(caller context.Context) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); s.ends == nil || now.Sub(s.began) >= settleTogether {
		ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
		context.AfterFunc(ctx, cancel) // it ends by itself
		s.ends, s.began = ctx, now
	}
	return settlement{s.ends, caller}
}

// settlement is the context of a settlement. It has the values of its caller's context.
type settlement struct {
	context.Context
	caller context.Context
}

func (s settlement) Value(key any) any {
	if v := s.Context.Value(key); v != nil { // as a context finds the one that it ends with
		return v
	}
	return s.caller.Value(key)
}

// settleOnce sends a settlement once.
func (l *Limiter) settleOnce(ctx context.Context, key string, charges []store.Charge, standIn bool) error {
	if l.quick != nil && len(charges) == 1 && charges[0].Period == nil {
		if allowed, decided := l.quick.SettleQuickly(l.name, key, &charges[0]); decided {
			return overdrawn(allowed)
		}
	}
	reply, err := l.settlement(ctx, key, charges, standIn)
	if err != nil {
		return err
	}
	return overdrawn(reply.Allowed)
}

// settlement sends a settlement once, and returns the reply.
func (l *Limiter) settlement(
	ctx context.Context, key string, charges []store.Charge, standIn bool,
) (store.TakeReply, error) {
	r := l.request(key, charges)
	r.StandIn = standIn
	return l.buckets.SettleTokens(l.settlements.context(ctx), r)
}

func overdrawn(allowed bool) error {
	if allowed {
		return nil
	}
	return ErrOverdraft
}

func settlementOf(err error) telemetry.SettlementResult {
	switch {
	case err == nil:
		return telemetry.Settled
	case errors.Is(err, ErrOverdraft):
		return telemetry.SettledInPart
	}
	return telemetry.NotSettled
}

// corrections returns the charges of SettleTokens. Unless a PlanFunc chooses the key's plan, they
// are at the rates of the present plan: a charge at earlier rates would bring those back.
func (r *Reservation) corrections() []store.Charge {
	plan := r.plan
	if now := r.limiter.rule.Load().plan.known(r.key); now != nil {
		plan = now
	}
	charges := r.few.corrections[:0]
	for i, used := range r.used {
		was := &r.plan.meters[i]
		if used == unreported || was.calendar.unit != noCalendar && time.Since(r.at) >= r.debts.End(i) {
			continue // a period that is over has no tokens
		}
		more := used - int64(r.reserved[i].Cost/was.interval)
		m := plan.meter(was.bucket)
		if m != nil && more != 0 && (!m.fresh || m.interval == was.interval) {
			c := m.charge(0)
			c.Cost = m.signedCost(more)
			charges = append(charges, c)
		}
	}
	return charges
}

// meter returns the meter of a bucket, or nil.
func (p *fixedPlan) meter(bucket string) *meter {
	for i := range p.meters {
		if p.meters[i].bucket == bucket {
			return &p.meters[i]
		}
	}
	return nil
}

// signedCost is the cost of any number of tokens, up to the largest that a bucket can have.
func (m *meter) signedCost(n int64) time.Duration {
	most := int64(math.MaxInt64/2) / int64(m.interval)
	return time.Duration(max(min(n, most), -most)) * m.interval
}
