package tokenbucket

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// WithCandidate decides every request by a second plan, too, whose decisions are counted
// (lockkeeper.rate_limit.candidates) and have no other effect, so that a new plan can be compared
// with the one that is enforced before it is. It has buckets of its own, and is charged for all
// requests, also those that are denied. Each decision asks the store once more.
//
// Limits and units that the candidate does not have cost nothing there. A cost that exceeds a burst
// of it counts as denied, and is not charged. What [Limiter.Reserve] has taken stays charged as
// estimated, also after Settle and Cancel. Peek, AllowAtMost and [All] do not ask it, and Wait asks
// it once.
func WithCandidate(plan Plan) Option {
	return func(c *config) { c.candidate, c.candidates = plan, true }
}

// candidateOf names the buckets of a candidate.
const candidateOf = internalBucket + "candidate/"

func compileCandidate(limiter string, plan Plan) (*compiledPlan, error) {
	if plan == nil {
		return nil, fmt.Errorf("%w: WithCandidate: nil plan", ErrInvalidLimit)
	}
	compiled, err := plan.compile(limiter)
	if err != nil {
		return nil, err
	}
	return &compiled, nil
}

// tryCandidate counts what the candidate decides about a cost. amount returns that of a limit.
func (l *Limiter) tryCandidate(ctx context.Context, key string, amount func(*meter) int64) {
	plan, err := l.candidate.limits(ctx, key)
	if err != nil {
		l.telemetry.Candidate(ctx, resultOf(nil, err))
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
		reply, err = l.store.TakeTokens(ctx, l.request(key, charges))
		d.Allowed = reply.Allowed
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	l.telemetry.Candidate(ctx, resultOf(&d, err))
}
