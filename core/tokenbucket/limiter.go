// Package tokenbucket limits how often something may happen: at most N per time, for each key.
//
// The algorithm is the virtual scheduling form of GCRA, the Generic Cell Rate Algorithm (ITU-T
// I.371, annex A): the state of a key is the time at which its bucket will be full again, which
// every charge postpones. All arithmetic is in integers, except for the debt of a bucket after a
// change of its rate.
//
// The packages called ratelimit are its middleware, in ginmw, echomw, echov5mw, nethttp, grpcmw and
// connectmw; one of them is [github.com/lockkeeper/lockkeeper/nethttp/ratelimit].
package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Limiter decides whether a request for a key is within the limits of its plan. Most callers need
// one of these:
//   - [Limiter.Allow], or the ratelimit middleware of their framework;
//   - [Limiter.Wait] for work that can wait;
//   - [Limiter.Reserve] for work that costs more than a token, or whose cost is known only at its
//     end;
//   - [All] for several keys in one decision.
//
// Limiters with the same name on the same store share their buckets, in one process as in several.
// All methods may be called concurrently.
type Limiter struct {
	store   store.Buckets
	buckets store.Buckets      // the store, or its decorator
	quick   store.QuickBuckets // the store, or nil
	name    string
	parent  *Limiter // or nil
	rule    atomic.Pointer[compiledRule]
	merged  atomic.Pointer[mergedPlan] // of the last All that began with this limiter, or nil

	namesake  *namesake.Member
	telemetry *telemetry.RateLimit

	queues queues // of waiters

	settlements settlements

	changing sync.Mutex    // of the rule, and of closed
	closed   chan struct{} // closed by Close
}

// New returns a limiter that keeps the buckets of its keys in store, under name.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// Limiters with the same name should have the same plan; different ones in this process are logged
// to slog.Default().
//
// It returns an error that matches [ErrInvalidLimit] if the plan makes no sense, and another one if
// the store is nil, or if the name is empty, longer than 128 bytes or not printable ASCII.
func New(st store.Buckets, name string, plan Plan, opts ...Option) (*Limiter, error) {
	if naming.IsNil(st) {
		return nil, errors.New("tokenbucket: New: nil store")
	}
	if !reflect.TypeOf(st).Comparable() {
		return nil, fmt.Errorf("tokenbucket: New: a store of type %T cannot be compared with another; use a pointer", st)
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("tokenbucket: New: %w", err)
	}
	var c config
	option.Apply(&c, opts)
	switch {
	case c.within && c.parent == nil:
		return nil, errors.New("tokenbucket: New: Within: nil limiter")
	case c.within && c.parent.store != st:
		return nil, fmt.Errorf("tokenbucket: New: Within: %q has another store", c.parent.name)
	case c.blocks && (c.block < 2 || c.block > maxBlock):
		return nil, fmt.Errorf("tokenbucket: New: WithLease: %d is not between 2 and %d", c.block, maxBlock)
	}
	l := &Limiter{
		store: st, buckets: st, name: name, parent: c.parent, closed: make(chan struct{}),
	}
	rule, err := l.firstRule(plan, &c)
	if err != nil {
		return nil, err
	}
	l.rule.Store(rule)
	if c.blocks {
		l.buckets = newBlocks(st, c.block)
	}
	l.quick, _ = l.buckets.(store.QuickBuckets)
	l.namesake = namesake.Join(st, slog.Default(), "rate_limit", name, l.settings())
	l.telemetry = telemetry.NewRateLimit(c.providers, ScopeName, name, l.namesake.Counter())
	namesake.LeaveWith(l, l.namesake)
	return l, nil
}

// Name returns the name that the limiter was built with.
func (l *Limiter) Name() string { return l.name }

// SetPlan replaces the plan for all decisions that begin after it returns, also those of waiters. A
// key keeps its used tokens for each limit whose name stays the same (see [Limits]): after 20 of 20
// a day, 980 of 1,000 a day remain. A limit with [Limit.ResetOnChange] begins with a full bucket
// instead.
//
// An error matches [ErrInvalidLimit] or [ErrClosed], and leaves the old plan in force.
func (l *Limiter) SetPlan(plan Plan) error {
	compiled, err := l.compile(plan)
	if err != nil {
		return err
	}
	return l.change(func(r *compiledRule) { r.plan, r.source, r.text = compiled, plan, settingsOf(plan).Text }, true)
}

// FixedPlan reports whether decisions need no context to choose a plan: neither the plan nor the
// candidate is a [PlanFunc] or [Cached], also not as the base of [Overrides], or the limiter is
// [Off].
func (l *Limiter) FixedPlan() bool {
	r := l.rule.Load()
	return r.enforcement.Mode == Off || r.plan.choose == nil && (r.candidate == nil || r.candidate.plan.choose == nil)
}

// Close ends the limiter: waiters return [ErrClosed], as later calls do. It sends nothing, and does
// not close the store. Buckets stay as they are. It returns nil.
func (l *Limiter) Close() error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if !l.isClosed() {
		close(l.closed)
		// Decisions need not look at closed.
		l.rule.Store(&compiledRule{plan: compiledPlan{err: ErrClosed}, enforcement: l.rule.Load().enforcement})
		l.namesake.Leave()
	}
	return nil
}

func (l *Limiter) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// Allow takes one token of the key. It is AllowN(ctx, key, 1).
func (l *Limiter) Allow(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, key, 1, &d)
	return d, err
}

// AllowN takes n tokens of the key, of every limit of its plan, or none of any.
//
// A denial is no error: the decision's Allowed is false, and nothing was charged. A cost of zero is
// always allowed and charges nothing.
//
// The error is one of:
//   - a *[CostError] if n exceeds a burst, so that waiting could never help;
//   - [ErrInvalidCost] if n is negative;
//   - [ErrInvalidKey] if the key is empty or longer than 1,024 bytes;
//   - [ErrClosed], the PlanFunc's own error, or the context's;
//   - one that matches store.ErrUnavailable if the store, or the source of plans, did not decide.
//     If it matches store.ErrUnconfirmed too, the charge may have been made. It is not retried, so
//     that no key is charged twice.
//
// If ctx ends before the store replies, nothing gives back a charge that was made: its tokens are
// lost. A busy key with many such callers admits less than its limit. A ctx without a timeout near
// that of the store avoids it.
//
// If the limits of the key are in [Shadow], a denial, a *CostError and a failure of the store or of
// the PlanFunc pass ([Decision.Shadow]). The other errors stay, and so does any if ctx has ended.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	if n < 0 {
		return d, invalidCost("AllowN", n, 0)
	}
	err = l.decide(ctx, key, n, &d)
	return d, err
}

// Peek returns the decision that [Limiter.Allow] would make now, and charges nothing. Its errors
// are those of AllowN. A failure is an error also in [Shadow].
func (l *Limiter) Peek(ctx context.Context, key string) (d Decision, err error) {
	plan, err := l.decidable(ctx, key)
	if err != nil {
		return d, err
	}
	r := l.request(key, plan.charges(0))
	err = l.take(ctx, plan, &r, plan.charges(1), &d)
	return d, err
}

// AllowAtMost takes as many tokens of the key as there are, up to n: the same number of every limit
// of its plan. The decision's Taken is that number. If there is none, the decision is a denial,
// whose RetryAfter is that of one token. n may exceed a burst; less than 1 is an [ErrInvalidCost].
// Other errors are those of AllowN. In [Shadow] it takes as many, and Taken is n all the same.
func (l *Limiter) AllowAtMost(ctx context.Context, key string, n int64) (d Decision, err error) {
	if n < 1 {
		return d, invalidCost("AllowAtMost", n, 1)
	}
	plan, _, err := l.limits(ctx, key)
	if err != nil {
		return d, err
	}
	r := l.request(key, plan.charges(1))
	r.AtMost = n
	err = l.take(ctx, plan, &r, nil, &d)
	switch {
	case err != nil:
	case plan.mode == Shadow:
		d.Taken, d.Shadow = n, d.Shadow || d.Taken < n
	case len(plan.meters) == 0:
		d.Taken = n
	}
	return d, err
}

// Reset fills the buckets of the key's present plan, ends its hold, and forgets its offences
// ([Limiter.HoldAgain]). Errors are those of AllowN, also in [Shadow]. If the limiter is [Off], it
// does nothing.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	plan, err := l.decidable(ctx, key)
	if err != nil || len(plan.meters) == 0 {
		return err
	}
	turn, offences := Escalation{first: time.Hour, longest: time.Hour}.meters()
	charges := append(plan.charges(0), turn.charge(0), offences.charge(0), refused(0))
	for i := range plan.meters {
		charges = append(charges, plan.meters[i].open(0))
	}
	return l.buckets.ResetTokens(ctx, l.request(key, charges))
}

// limits returns the limits of a key, and the rule that they are of.
func (l *Limiter) limits(ctx context.Context, key string) (*fixedPlan, *compiledRule, error) {
	if err := l.checkKey(key); err != nil {
		return nil, nil, err
	}
	rule := l.rule.Load()
	plan, err := rule.limits(ctx, key)
	return plan, rule, err
}

func (l *Limiter) checkKey(key string) error {
	if err := naming.CheckKey(key); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return l.checkParents(key)
}

// decidable returns the limits of a key. It returns an error if they are not known, also in shadow.
func (l *Limiter) decidable(ctx context.Context, key string) (*fixedPlan, error) {
	plan, _, err := l.limits(ctx, key)
	if err == nil {
		err = plan.undecided
	}
	return plan, err
}

// request returns a request about the buckets of a key.
func (l *Limiter) request(key string, charges []store.Charge) (r store.TokenRequest) {
	r.Limiter, r.Key, r.Home, r.Charges = l.name, key, l.home(key), charges
	return r
}

// decide makes a decision about n tokens in place: returning it would copy it several times, which
// takes about as long as making it.
func (l *Limiter) decide(ctx context.Context, key string, n int64, d *Decision) error {
	plan, rule, err := l.limits(ctx, key)
	if err != nil {
		return err
	}
	if err := plan.affords(n); err != nil {
		if plan, err = plan.passing(err); err != nil {
			return err
		}
	}
	if !d.again {
		rule.decideCandidate(ctx, key, func(*meter) int64 { return n })
	}
	return l.takeOnce(ctx, key, plan, plan.charges(n), d)
}

// takeOnce makes a decision about charges in place.
func (l *Limiter) takeOnce(
	ctx context.Context, key string, plan *fixedPlan, charges []store.Charge, d *Decision,
) error {
	if l.quick != nil && len(charges) == 1 && charges[0].Period == nil {
		began := l.telemetry.Begin(ctx)
		if debt, allowed, decided := l.quick.TakeQuickly(ctx, l.name, key, &charges[0]); decided {
			d.plan, d.debts, d.Allowed = plan, store.OneDebt(debt), allowed
			if !allowed {
				d.deny(charges)
				l.denied(key, d)
			}
			l.telemetry.End(ctx, began, resultOf(d, nil), nil)
			return nil
		}
	}
	r := l.request(key, charges)
	return l.take(ctx, plan, &r, nil, d)
}

// take makes a decision in place. If others is not nil, the decision is about these charges to the
// same buckets, and does not make them.
func (l *Limiter) take(
	ctx context.Context, plan *fixedPlan, r *store.TokenRequest, others []store.Charge, d *Decision,
) error {
	if len(plan.meters) == 0 {
		l.passes(ctx, plan, d)
		return nil
	}
	began := l.telemetry.Begin(ctx)
	reply, err := l.buckets.TakeTokens(ctx, *r)
	if err == nil {
		d.plan = plan
		d.read(&reply, r.Charges, others)
		if !d.Allowed {
			if others == nil || plan.mode == Shadow {
				l.denied(r.Key, d)
			}
		}
	}
	l.telemetry.End(ctx, began, resultOf(d, err), err)
	if err != nil && others == nil && plan.lenient(ctx, err) {
		d.plan = undecided(err)
		d.pass()
		return nil
	}
	return err
}

// passes makes the decision about a key without limits, or about which there is no decision.
func (l *Limiter) passes(ctx context.Context, plan *fixedPlan, d *Decision) {
	d.plan, d.Allowed = plan, true
	err := plan.undecided
	if err != nil {
		d.pass()
	}
	if errors.Is(err, ErrCostExceedsBurst) {
		err = nil // it is decided
	}
	l.telemetry.End(ctx, l.telemetry.Begin(ctx), resultOf(d, err), err)
}

// denied counts a denial of a key. In shadow it passes.
func (l *Limiter) denied(key string, d *Decision) {
	if d.plan.mode == Shadow {
		d.pass()
		return
	}
	l.countDenied(key, d)
}

// resultOf returns a decision's result in telemetry.
func resultOf(d *Decision, err error) telemetry.RateLimitResult {
	switch {
	case err != nil:
		return telemetry.RateLimitError
	case d.Shadow:
		return telemetry.RateLimitShadow
	case d.Allowed:
		return telemetry.RateLimitAcquired
	}
	return telemetry.RateLimitDenied
}
