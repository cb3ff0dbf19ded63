package tokenbucket

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
)

// Rule is all that can change of a limiter that is in use. The candidate may be nil.
type Rule struct {
	Plan        Plan
	Enforcement Enforcement
	Candidate   Plan
}

// SetRule is [Limiter.SetPlan], [Limiter.SetEnforcement] and [Limiter.SetCandidate] in one step:
// every decision is by the former rule or by this one. Its errors are theirs, and change nothing.
func (l *Limiter) SetRule(r Rule) error {
	set, err := l.PrepareRule(r)
	if err != nil {
		return err
	}
	return set()
}

// PrepareRule is [Limiter.SetRule] in two steps, for a change of several mechanisms: it compiles
// the rule, and changes nothing. set puts the rule in force, at once and as often as it is called;
// its error is [ErrClosed].
func (l *Limiter) PrepareRule(r Rule) (set func() error, err error) {
	compiled, err := l.compile(r.Plan)
	if err != nil {
		return nil, err
	}
	e, err := r.Enforcement.check()
	if err != nil {
		return nil, err
	}
	var c *candidate
	if r.Candidate != nil {
		if c, err = newCandidate(l, r.Candidate); err != nil {
			return nil, err
		}
	}
	text := settingsOf(r.Plan).Text
	return func() error {
		return l.setRule(&compiledRule{plan: compiled, source: r.Plan, text: text, enforcement: e, candidate: c})
	}, nil
}

// setRule replaces what a rule has of a compiled one.
func (l *Limiter) setRule(r *compiledRule) error {
	return l.change(func(rule *compiledRule) {
		rule.plan, rule.source, rule.text = r.plan, r.source, r.text
		rule.enforcement, rule.candidate = r.enforcement, r.candidate
	}, true)
}

// Rule returns the present rule, as it was set: with it SetRule undoes a later one. The share of
// its enforcement is that of [Limiter.Enforcement], but for a mode that has none.
func (l *Limiter) Rule() Rule {
	compiled := l.rule.Load()
	r := Rule{Plan: compiled.source, Enforcement: compiled.enforcement}
	if r.Enforcement.Mode != Enforce {
		r.Enforcement.Share = 0
	}
	if c := compiled.candidate; c != nil {
		r.Candidate = c.source
	}
	return r
}

// compiledRule is a rule as a limiter uses it. It is replaced as a whole.
type compiledRule struct {
	fixed *fixedPlan // of every key in every mode, or nil
	twin  *fixedPlan // plan.fixed in shadow, or nil

	plan        compiledPlan
	source      Plan   // that was compiled
	text        string // of the plan, in settings
	enforcement Enforcement
	limiter     uint64 // the hash of the limiter's name
	below       uint64 // the hashes of keys that are enforced, if the share is below 1
	candidate   *candidate
}

// firstRule returns the rule of a new limiter: it enforces the plan for all keys.
func (l *Limiter) firstRule(plan Plan, c *config) (*compiledRule, error) {
	compiled, err := l.compile(plan)
	if err != nil {
		return nil, err
	}
	r := &compiledRule{plan: compiled, source: plan, text: settingsOf(plan).Text, enforcement: Enforcement{Share: 1}}
	r.limiter = hashOf(hashOf(hashOffset, l.name), "\x00")
	if c.candidates {
		if r.candidate, err = newCandidate(l, c.candidate); err != nil {
			return nil, err
		}
	}
	r.prepare()
	return r, nil
}

func (l *Limiter) compile(plan Plan) (compiledPlan, error) {
	if plan == nil {
		return compiledPlan{}, fmt.Errorf("%w: nil plan", ErrInvalidLimit)
	}
	return plan.compile(l.name)
}

// settings returns the settings that limiters of the name must have in common: also the parent,
// since it has the place of the buckets.
func (l *Limiter) settings() namesake.Settings {
	r := l.rule.Load()
	s := namesake.Settings{Text: r.text + r.enforcement.text()}
	if l.parent != nil {
		s.Text += " within " + l.parent.name
	}
	return s
}

// change replaces the rule. Waiters ask again if it can concern them.
func (l *Limiter) change(change func(*compiledRule), waiters bool) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	if l.isClosed() {
		return ErrClosed
	}
	next := *l.rule.Load()
	change(&next)
	next.prepare()
	l.rule.Store(&next)
	if waiters {
		l.queues.wake()
	}
	l.namesake.Change(l.settings())
	return nil
}

// prepare sets what decisions need.
func (r *compiledRule) prepare() {
	r.fixed, r.twin, r.below = nil, nil, 0
	if r.enforcement.Mode == Off {
		r.fixed = &fixedPlan{mode: Off}
		return
	}
	if r.enforcement.Share > 0 && r.enforcement.Share < 1 {
		r.below = uint64(r.enforcement.Share * (1 << 64))
	}
	if r.plan.fixed == nil {
		return
	}
	if r.enforcement.Share < 1 {
		r.twin = r.plan.fixed.inShadow()
	}
	if r.plan.overrides == nil {
		switch r.enforcement.Share {
		case 0:
			r.fixed = r.twin
		case 1:
			r.fixed = r.plan.fixed
		}
	}
}

// limits returns the limits of a key, with their mode. A plan in shadow that cannot be chosen is
// one that says so.
func (r *compiledRule) limits(ctx context.Context, key string) (*fixedPlan, error) {
	if r.fixed != nil {
		return r.fixed, nil
	}
	plan, err := r.plan.limits(ctx, key)
	switch {
	case r.enforces(key):
		return plan, err
	case err == nil && plan == r.plan.fixed:
		return r.twin, nil
	case err == nil:
		return plan.inShadow(), nil
	case r.plan.choose == nil || ctx.Err() != nil: // the limiter is closed, or the caller has left
		return nil, err
	}
	return undecided(err), nil
}
