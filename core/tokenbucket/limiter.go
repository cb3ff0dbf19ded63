// Package tokenbucket limits how often something may happen: at most N per time, for each key.
//
// The algorithm is the virtual scheduling form of GCRA, the Generic Cell Rate Algorithm (ITU-T
// I.371, annex A): the state of a key is the time at which its bucket will be full again, which every
// charge postpones. All arithmetic is in integers.
package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Limiter decides whether a request for a key is within the limits of its plan.
//
// Most callers want [Limiter.Allow], or [Limiter.Wait] for work that can wait, or the ratelimit
// middleware of their framework. Limiters with the same name on the same store share their buckets,
// in one process as in several. All methods may be called concurrently.
type Limiter struct {
	store store.Buckets
	name  string
	plan  atomic.Pointer[compiledPlan]

	namesake  *namesake.Member
	telemetry *telemetry.RateLimit

	queues queues // of waiters

	changing sync.Mutex    // of the plan, and of closed
	closed   chan struct{} // closed by Close
}

// New returns a limiter that keeps the buckets of its keys in store, under name.
//
// Limiters with the same name should have the same plan; different ones in this process are logged to
// slog.Default().
//
// It returns an error that matches [ErrInvalidLimit] if the plan makes no sense, and another one if
// the store is nil, or if the name is empty, longer than 128 bytes or not printable ASCII.
func New(st store.Buckets, name string, plan Plan, opts ...Option) (*Limiter, error) {
	if naming.IsNil(st) {
		return nil, errors.New("tokenbucket: New: nil store")
	}
	if err := naming.CheckName(name); err != nil {
		return nil, fmt.Errorf("tokenbucket: New: %w", err)
	}
	var c config
	option.Apply(&c, opts)
	l := &Limiter{
		store: st, name: name, telemetry: telemetry.NewRateLimit(c.providers, ScopeName, name),
		closed: make(chan struct{}),
	}
	if err := l.SetPlan(plan); err != nil {
		return nil, err
	}
	l.namesake = namesake.Join(st, slog.Default(), "rate_limit", name, settingsOf(plan))
	return l, nil
}

// Name returns the name that the limiter was built with.
func (l *Limiter) Name() string { return l.name }

// SetPlan replaces the plan for all decisions that begin after it returns, also those of callers that
// wait. What a key owes is time, so its bucket carries over to the new plan: a key that was out of
// tokens does not start afresh.
//
// An error matches [ErrInvalidLimit] or [ErrClosed], and leaves the old plan in force.
func (l *Limiter) SetPlan(plan Plan) error {
	if plan == nil {
		return fmt.Errorf("%w: nil plan", ErrInvalidLimit)
	}
	compiled, err := plan.compile(l.name)
	if err != nil {
		return err
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	l.plan.Store(&compiled)
	l.queues.wake()
	l.namesake.Change(settingsOf(plan))
	return nil
}

// Close ends the limiter: callers that wait return [ErrClosed], as later calls do. It sends
// nothing, and does not close the store. Buckets stay as they are. It returns nil.
func (l *Limiter) Close() error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if !l.isClosed() {
		close(l.closed)
		l.plan.Store(&compiledPlan{err: ErrClosed}) // decisions need not look at closed
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
	err = l.decide(ctx, key, 1, true, &d)
	return d, err
}

// AllowN takes n tokens of the key, of every limit of its plan, or none of any.
//
// A denial is no error: the decision's Allowed is false, and nothing was charged. A cost of zero is
// always allowed and charges nothing.
//
// The error is a *[CostError] if n exceeds a burst, so that waiting could never help,
// [ErrInvalidCost] if n is negative, [ErrInvalidKey] if the key is empty or longer than 1,024
// bytes, [ErrClosed], the PlanFunc's own error, or the context's. An error that matches
// store.ErrUnavailable says that the store, or the source of plans, did not decide; if it matches store.ErrUnconfirmed too,
// the charge may have been made. It is not retried, so that no key is charged twice.
func (l *Limiter) AllowN(ctx context.Context, key string, n int64) (d Decision, err error) {
	err = l.decide(ctx, key, n, true, &d)
	return d, err
}

// Peek returns the decision that [Limiter.Allow] would make now, and charges nothing. Its errors
// are those of AllowN.
func (l *Limiter) Peek(ctx context.Context, key string) (d Decision, err error) {
	err = l.decide(ctx, key, 1, false, &d)
	return d, err
}

// Reset fills the buckets of the key's present plan. Errors are those of AllowN.
func (l *Limiter) Reset(ctx context.Context, key string) error {
	plan, err := l.limits(ctx, key)
	if err != nil {
		return err
	}
	if len(plan.meters) == 0 {
		return nil
	}
	buckets := make([]string, len(plan.meters))
	for i, m := range plan.meters {
		buckets[i] = m.bucket
	}
	return l.store.ResetTokens(ctx, l.name, key, buckets)
}

func (l *Limiter) limits(ctx context.Context, key string) (*fixedPlan, error) {
	if err := naming.CheckKey(key); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return l.plan.Load().limits(ctx, key)
}

// decide makes a decision in place: returning it would copy it several times, which takes about as
// long as making it.
func (l *Limiter) decide(ctx context.Context, key string, n int64, charge bool, d *Decision) error {
	if n < 0 {
		return ErrInvalidCost
	}
	plan, err := l.limits(ctx, key)
	if err != nil {
		return err
	}
	for i := range plan.meters {
		if m := &plan.meters[i]; n > m.burst {
			return &CostError{Limit: m.name, Cost: n, Burst: m.burst}
		}
	}
	take := int64(0)
	if charge {
		take = n
	}
	began := l.telemetry.Begin(ctx)
	if len(plan.meters) == 0 {
		d.plan, d.Allowed = plan, true
		l.telemetry.End(ctx, began, telemetry.RateLimitAcquired, nil)
		return nil
	}
	reply, err := l.store.TakeTokens(ctx, l.name, key, plan.charges(take))
	if err != nil {
		l.telemetry.End(ctx, began, telemetry.RateLimitError, err)
		return err
	}
	d.plan, d.debts = plan, reply.Debts
	if reply.Cached {
		d.Source = FromCache
	}
	if !charge || !reply.Allowed { // else the debt has it already
		d.asked = n
		for i := range plan.meters {
			m := &plan.meters[i]
			d.RetryAfter = max(d.RetryAfter, m.wait(reply.Debts.At(i), m.cost(n)))
		}
	}
	d.Allowed = reply.Allowed && d.RetryAfter == 0
	result := telemetry.RateLimitDenied
	if d.Allowed {
		result = telemetry.RateLimitAcquired
	}
	l.telemetry.End(ctx, began, result, nil)
	return nil
}
