package tokenbucket

import (
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Source is where a decision was made.
type Source uint8

// The sources of decisions.
const (
	FromStore Source = iota
	// FromCache is a denial from the store's denial cache.
	FromCache
)

// String returns "store" or "cache".
func (s Source) String() string {
	if s == FromCache {
		return "cache"
	}
	return "store"
}

// Decision is the answer to one question about a key.
type Decision struct {
	// Allowed reports whether the cost was charged ([Limiter.Allow]) or could be ([Limiter.Peek]).
	Allowed bool
	// Source is where it was made.
	Source Source
	// RetryAfter is how long to wait until the same cost can be afforded, if no other caller takes
	// tokens of the key first. Zero when allowed.
	RetryAfter time.Duration

	plan  *fixedPlan
	debts store.Debts
	asked int64 // tokens that were not charged
}

// Limits returns how each limit of the plan stands after the decision, in the plan's order: none if
// there was no decision. It computes them anew at each call.
func (d Decision) Limits() []LimitState {
	if d.plan == nil {
		return nil
	}
	return d.AppendLimits(make([]LimitState, 0, len(d.plan.meters)))
}

// AppendLimits appends what [Decision.Limits] returns to states.
func (d *Decision) AppendLimits(states []LimitState) []LimitState {
	if d.plan == nil {
		return states
	}
	for i := range d.plan.meters {
		m := &d.plan.meters[i]
		states = append(states, LimitState{})
		m.tell(&states[len(states)-1], d.debts.At(i), m.cost(d.asked))
	}
	return states
}

// LimitState is one limit of a [Decision], as it stands after the decision.
type LimitState struct {
	Name      string        // the limit's name, or the limiter's for its only, unnamed limit
	Capacity  int64         // tokens in a full bucket: the burst
	Window    time.Duration // what refills an empty bucket
	Remaining int64         // whole tokens left, between 0 and Capacity
	Reset     time.Duration // until the bucket is full again; zero if it is
	// RetryAfter is how long this limit alone would make the same cost wait: zero for the limits
	// that did not deny it.
	RetryAfter time.Duration
}
