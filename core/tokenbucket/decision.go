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
	// FromLease is a decision from the tokens that this process has taken in advance ([WithLease]).
	FromLease
	// FromStandIn is a decision of the store's stand-in, with this process's share of the limits
	// (package fallback), since the store is down.
	FromStandIn
)

// String returns "store", "cache", "lease" or "stand-in".
func (s Source) String() string {
	switch s {
	case FromCache:
		return "cache"
	case FromLease:
		return "lease"
	case FromStandIn:
		return "stand-in"
	}
	return "store"
}

// Decision is the answer to one question about a key.
type Decision struct {
	// Allowed reports whether the cost was charged ([Limiter.Allow]) or could be ([Limiter.Peek]).
	Allowed bool
	// Source is where it was made.
	Source Source

	standIn bool // the store's stand-in made it
	again   bool // a later one of a wait, which the candidate and Denied do not count

	// Shadow reports that the key is in shadow ([Limiter.SetEnforcement]), and the request passes
	// although it would not otherwise: Allowed is true, RetryAfter is zero, and nothing was charged.
	// Either it would have been denied, or [Decision.Undecided] has the reason. Of AllowAtMost it
	// reports that fewer tokens were there than Taken says; these were charged.
	Shadow bool

	// RetryAfter is how long to wait until the same cost can be afforded, if no other caller takes
	// tokens of the key first. Zero when allowed.
	RetryAfter time.Duration
	// Taken is how many tokens [Limiter.AllowAtMost] took. Other methods leave it at zero.
	Taken int64
	// Held is for how long the key is held ([Limiter.Hold]), zero if it is not. RetryAfter is then
	// at least as long.
	Held time.Duration
	// Pending reports that an attempt ([AsAttempt]) was denied because of open ones. It could be
	// afforded if they gave their tokens back, which may happen at any moment. RetryAfter is for the
	// case that they do not.
	Pending bool

	plan  *fixedPlan
	debts store.Debts
	asked *[]store.Charge // charges that were not made, or nil

	attempts bool // the debts of tokens that attempts have reserved follow those of the limits
}

// read sets the decision by a store's reply to charges. If others is not nil, the decision is about
// others, and the store has only looked at the buckets.
func (d *Decision) read(reply *store.TakeReply, charges, others []store.Charge) {
	d.debts, d.Taken, d.Held = reply.Debts, reply.Taken, reply.Held
	d.standIn = reply.StandIn
	switch {
	case reply.Leased:
		d.Source = FromLease
	case reply.StandIn:
		d.Source = FromStandIn
	case reply.Cached:
		d.Source = FromCache
	}
	if others != nil {
		charges = others
	}
	if others != nil || !reply.Allowed { // else the debts have the charges already
		d.deny(charges)
	}
	d.Allowed = reply.Allowed && d.RetryAfter == 0
}

// deny records the charges, which were not made, and sets RetryAfter.
func (d *Decision) deny(charges []store.Charge) {
	if one := &d.plan.one; len(*one) > 0 && &charges[0] == &(*one)[0] {
		d.asked = one
	} else {
		asked := charges
		d.asked = &asked
	}
	for i := range d.plan.meters {
		d.RetryAfter = max(d.RetryAfter, d.plan.meters[i].wait(d.debts.At(i), charges[i].Cost, d.debts.End(i)))
	}
	d.RetryAfter = max(d.RetryAfter, ceil(d.Held))
}

// Enforced reports whether the limits of the key are enforced. In [Shadow] and [Off] they are not,
// so an answer to a client must not show them.
func (d Decision) Enforced() bool { return d.plan == nil || d.plan.mode == Enforce }

// Undecided returns the error that a request in shadow would have failed with: that of its cost, of
// the store, or of choosing the plan. It returns nil if there was a decision.
func (d Decision) Undecided() error {
	if d.plan == nil {
		return nil
	}
	return d.plan.undecided
}

// Limits returns how each limit of the plan stands after the decision, in the plan's order: none if
// there was no decision. It computes them anew at each call.
func (d Decision) Limits() []LimitState {
	if d.plan == nil {
		return nil
	}
	return d.AppendLimits(make([]LimitState, 0, len(d.plan.meters)))
}

// AppendLimits appends the limits of [Decision.Limits] to states.
func (d *Decision) AppendLimits(states []LimitState) []LimitState {
	if d.plan == nil {
		return states
	}
	for i := range d.plan.meters {
		cost := time.Duration(0)
		if d.asked != nil {
			cost = (*d.asked)[i].Cost
		}
		states = append(states, LimitState{})
		s := &states[len(states)-1]
		s.Reserved = d.reservedAt(i)
		d.plan.meters[i].tell(s, d.debts.At(i), cost, d.debts.End(i))
	}
	return states
}

// LimitState is one limit of a [Decision], as it stands after the decision.
type LimitState struct {
	Name      string        // the limit's name, or the limiter's for its only, unnamed limit
	Capacity  int64         // tokens in a full bucket: the burst
	Window    time.Duration // in which an empty bucket refills
	Remaining int64         // whole tokens left, between 0 and Capacity
	Reserved  int64         // tokens that open attempts have reserved ([AsAttempt]), and may give back
	Reset     time.Duration // until the bucket is full again, if these come back now; zero if it is
	Next      time.Duration // until it has one more token; zero if it is full
	// Shadow reports that the key is in shadow ([Limiter.SetEnforcement]), and the request passes
	// although it would not otherwise: Allowed is true, RetryAfter is zero, and nothing was charged.
	// Either it would have been denied, or [Decision.Undecided] has the reason. Of AllowAtMost it
	// reports that fewer tokens were there than Taken says; these were charged.
	Shadow bool

	// RetryAfter is how long this limit alone would make the same cost wait. It is zero for a limit
	// that did not deny it.
	RetryAfter time.Duration
}
