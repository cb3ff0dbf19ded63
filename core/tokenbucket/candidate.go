package tokenbucket

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// WithCandidate decides every request by a second plan as well, until [Limiter.SetCandidate]. Its
// decisions are counted (lockkeeper.rate_limit.candidates) and have no other effect, so that a new
// plan can be compared with the enforced one before it replaces it. The candidate has buckets of its
// own, which all requests charge, also requests that are denied. Each decision asks the store once
// more.
//
// Limits and units that the candidate does not have cost nothing there. A cost that exceeds one of
// its bursts counts as denied, and is not charged. An estimate of [Limiter.Reserve] stays charged,
// also after Settle and Cancel. Peek, AllowAtMost, [All] and a limiter that is [Off] do not ask the
// candidate, and Wait asks it once.
func WithCandidate(plan Plan) Option {
	return func(c *config) { c.candidate, c.candidates = plan, true }
}

// SetCandidate replaces the candidate ([WithCandidate]) for all decisions that begin after it
// returns. Nil ends it. A candidate keeps used tokens as a plan does ([Limiter.SetPlan]).
//
// An error matches [ErrInvalidLimit] or [ErrClosed], and leaves the old candidate in force.
func (l *Limiter) SetCandidate(plan Plan) error {
	var c *candidate
	if plan != nil {
		var err error
		if c, err = newCandidate(l, plan); err != nil {
			return err
		}
	}
	return l.change(func(r *compiledRule) { r.candidate = c }, false)
}

// candidateOf names the buckets of a candidate.
const candidateOf = internalBucket + "candidate/"

// candidate is a second limiter beside a limiter. Nil is none.
type candidate struct {
	of     *Limiter
	plan   compiledPlan
	source Plan // that was compiled
}

func newCandidate(of *Limiter, plan Plan) (*candidate, error) {
	if plan == nil {
		return nil, fmt.Errorf("%w: WithCandidate: nil plan", ErrInvalidLimit)
	}
	compiled, err := plan.compile(of.name)
	return &candidate{of, compiled, plan}, err
}

// decideCandidate counts the decision of the rule's candidate about a cost, unless the limiter is
// off. amount returns the tokens for a limit.
func (r *compiledRule) decideCandidate(ctx context.Context, key string, amount func(*meter) int64) {
	if c := r.candidate; c != nil && r.enforcement.Mode != Off {
		c.decide(ctx, key, amount)
	}
}

func (c *candidate) decide(ctx context.Context, key string, amount func(*meter) int64) {
	plan, err := c.plan.limits(ctx, key)
	if err != nil {
		c.of.telemetry.Candidate(ctx, resultOf(nil, err))
		return
	}
	d := Decision{Allowed: true}
	charges := make([]store.Charge, len(plan.meters))
	for i := range plan.meters {
		m := &plan.meters[i]
		n := amount(m)
		if n > m.burst {
			d.Allowed, n = false, m.burst
		}
		charges[i] = m.charge(n)
		charges[i].Bucket = candidateOf + m.bucket
	}
	if d.Allowed && len(charges) > 0 {
		var reply store.TakeReply
		reply, err = c.of.buckets.TakeTokens(ctx, c.of.request(key, charges))
		d.Allowed = reply.Allowed
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	c.of.telemetry.Candidate(ctx, resultOf(&d, err))
}
