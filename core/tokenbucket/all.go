package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Ask is a request for tokens of one key, as [All] takes it.
type Ask struct {
	limiter *Limiter
	key     string
	n       int64
}

// Ask returns a request for n tokens of a key, for [All].
func (l *Limiter) Ask(key string, n int64) Ask { return Ask{l, key, n} }

// All takes the tokens of several keys in one decision: all of them, or none. The keys are of one
// limiter, or of several limiters on the same store. For a user, the user's team and an address:
//
//	d, err := tokenbucket.All(ctx, users.Ask(user, 1), teams.Ask(team, 1), addresses.Ask(address, 1))
//
// The decision has the limits of all keys, in order. The limits with a RetryAfter are the ones that
// deny. Several asks of one limiter for the same key count as one, for the sum of their tokens.
//
// Keys whose limits are not enforced ([Limiter.SetEnforcement]) deny nothing. Those in [Shadow] are
// decided together, after the others have allowed; [Decision.Shadow] reports that they would have
// denied. The decision has their limits only if no key is enforced.
//
// Errors are those of [Limiter.AllowN], and one that matches store.ErrManySlots if the limiters
// have different stores, or if the store does not keep the keys in one place. On Redis Cluster it
// does so only for keys of limiters that are [Within] each other.
func All(ctx context.Context, asks ...Ask) (d Decision, err error) {
	asks, err = together(asks)
	if err != nil || len(asks) == 0 {
		return Decision{Allowed: err == nil}, err
	}
	var few [4]*fixedPlan
	var fewRules [4]*compiledRule
	plans, rules, enforced := few[:0], fewRules[:0], true
	for i, a := range asks {
		rule := a.limiter.rule.Load()
		if same := slices.IndexFunc(asks[:i], func(b Ask) bool { return b.limiter == a.limiter }); same >= 0 {
			rule = rules[same]
		}
		rules = append(rules, rule)
		plan, err := a.limits(ctx, rule)
		if err != nil {
			return d, err
		}
		plans = append(plans, plan)
		enforced = enforced && plan.mode == Enforce
	}
	if enforced {
		return takeAll(ctx, asks, plans)
	}
	return allApart(ctx, asks, plans)
}

// limits returns the limits of the key, which can afford the tokens, by a rule of the limiter.
func (a Ask) limits(ctx context.Context, rule *compiledRule) (*fixedPlan, error) {
	if err := a.limiter.checkKey(a.key); err != nil {
		return nil, err
	}
	plan, err := rule.limits(ctx, a.key)
	if err != nil {
		return nil, err
	}
	if err := plan.affords(a.n); err != nil {
		return plan.passing(err)
	}
	return plan, nil
}

// allApart makes a decision about keys of which some are not enforced.
func allApart(ctx context.Context, asks []Ask, plans []*fixedPlan) (Decision, error) {
	var parts [2]struct {
		asks  []Ask
		plans []*fixedPlan
	}
	d := Decision{Allowed: true, plan: &fixedPlan{mode: Off}}
	for i, plan := range plans {
		if plan.mode == Off || plan.undecided != nil {
			var own Decision
			if asks[i].limiter.passes(ctx, plan, &own); own.Shadow {
				d = own
			}
			continue
		}
		part := &parts[plan.mode]
		part.asks, part.plans = append(part.asks, asks[i]), append(part.plans, plan)
	}
	enforced, shadowed := &parts[Enforce], &parts[Shadow]
	if len(enforced.asks) > 0 {
		shadow := d.Shadow
		var err error
		if d, err = takeAll(ctx, enforced.asks, enforced.plans); err != nil || !d.Allowed {
			return d, err
		}
		d.Shadow = shadow
	}
	if len(shadowed.asks) == 0 {
		return d, nil
	}
	s, err := takeAll(ctx, shadowed.asks, shadowed.plans)
	switch {
	case err == nil:
	case shadowed.plans[0].lenient(ctx, err):
		s.plan = undecided(err)
		s.pass()
	case len(enforced.asks) == 0:
		return Decision{}, err
	}
	if len(enforced.asks) > 0 {
		d.Shadow = d.Shadow || s.Shadow
		return d, nil
	}
	s.Shadow = s.Shadow || d.Shadow
	return s, nil
}

// takeAll makes a decision about keys in one mode.
func takeAll(ctx context.Context, asks []Ask, plans []*fixedPlan) (d Decision, err error) {
	merged := merge(asks, plans)
	first, r, more, err := requests(asks, plans, merged.one)
	if err != nil {
		return d, err
	}
	d.plan = merged
	if first == nil {
		d.Allowed = true
		return d, nil
	}
	began := first.telemetry.Begin(ctx)
	reply, err := first.store.TakeTokens(ctx, r, more...)
	if err == nil {
		if d.read(&reply, merged.one, nil); !d.Allowed && merged.mode == Shadow {
			d.pass()
		}
	}
	for _, a := range asks {
		a.limiter.telemetry.End(ctx, began, resultOf(&d, err), err)
	}
	if err != nil {
		return Decision{}, err
	}
	if !d.Allowed {
		countAllDenied(asks, plans, &d)
	}
	return d, nil
}

// requests returns the requests of the asks whose keys have limits, and the limiter of the first
// one, r. It shares out the charges.
func requests(asks []Ask, plans []*fixedPlan, charges []store.Charge) (
	first *Limiter, r store.TokenRequest, more []store.TokenRequest, err error,
) {
	for i, a := range asks {
		limits := len(plans[i].meters)
		if limits == 0 {
			continue
		}
		its := charges[:limits:limits]
		charges = charges[limits:]
		switch {
		case first == nil:
			first, r = a.limiter, a.limiter.request(a.key, its)
			continue
		case first.store != a.limiter.store:
			return nil, r, nil, fmt.Errorf("tokenbucket: All: %q and %q have different stores: %w",
				first.name, a.limiter.name, store.ErrManySlots)
		case more == nil:
			more = make([]store.TokenRequest, 0, len(asks)-i)
		}
		more = append(more, a.limiter.request(a.key, its))
	}
	return first, r, more, nil
}

// mergedPlan is the limits of several keys as one plan, whose charges are of certain numbers of
// tokens.
type mergedPlan struct {
	fixedPlan
	parts []*fixedPlan
	ns    []int64
}

// merge returns the limits of all plans, which are in one mode, with the charges of the asks. A
// limiter keeps the result of the last decision that began with it: most decisions have the same
// plans and numbers.
func merge(asks []Ask, plans []*fixedPlan) *fixedPlan {
	last := &asks[0].limiter.merged
	if m := last.Load(); m != nil && m.is(asks, plans) {
		return &m.fixedPlan
	}
	m := &mergedPlan{parts: slices.Clone(plans)}
	m.mode = plans[0].mode
	for i, plan := range plans {
		m.ns = append(m.ns, asks[i].n)
		m.meters = append(m.meters, plan.meters...)
		m.one = append(m.one, plan.charges(asks[i].n)...)
		m.dated = m.dated || plan.dated
	}
	if !m.dated {
		last.Store(m)
	}
	return &m.fixedPlan
}

func (m *mergedPlan) is(asks []Ask, plans []*fixedPlan) bool {
	if !slices.Equal(m.parts, plans) {
		return false
	}
	for i, n := range m.ns {
		if n != asks[i].n {
			return false
		}
	}
	return true
}

// together returns the asks, merged where they are for the same key of a limiter.
func together(asks []Ask) ([]Ask, error) {
	for i, a := range asks {
		switch {
		case a.limiter == nil:
			return nil, errors.New("tokenbucket: All: nil limiter")
		case a.n < 0:
			return nil, invalidCost("Ask", a.n, 0)
		}
		j := slices.IndexFunc(asks[:i], a.sameKey)
		if j < 0 {
			continue
		}
		fewer := slices.Delete(slices.Clone(asks), i, i+1)
		if b := &fewer[j]; max(a.n, b.n) > maxCount { // more than any burst, and their sum may be too large
			b.n = max(a.n, b.n)
		} else {
			b.n += a.n
		}
		return together(fewer)
	}
	return asks, nil
}

func (a Ask) sameKey(b Ask) bool {
	return b.limiter != nil && a.limiter.name == b.limiter.name && a.limiter.store == b.limiter.store && a.key == b.key
}

// Within makes each key of a limiter begin with a key of another one, its parent, and a slash: the
// key "acme/ann" of users belongs to "acme" of teams. The limiter's own part is behind the last
// slash. A key without a slash is an [ErrInvalidKey]. The parent has the same store.
//
// The buckets of both keys are kept in one place, so that [All] can charge them together on Redis
// Cluster. All members of a team then burden one node. After the option is added or removed, the
// limiter's buckets are full.
func Within(parent *Limiter) Option {
	return func(c *config) { c.parent, c.within = parent, true }
}

// home returns the topmost parent's key, or nil without a parent. The buckets of both keys are kept
// in one place.
func (l *Limiter) home(key string) *store.BucketHome {
	if l.parent == nil {
		return nil
	}
	above := key[:strings.LastIndexByte(key, '/')]
	if home := l.parent.home(above); home != nil {
		return home
	}
	return &store.BucketHome{Limiter: l.parent.name, Key: above}
}

// checkParents returns an error for a key that names no key of the limiter's parents.
func (l *Limiter) checkParents(key string) error {
	for p := l.parent; p != nil; p = p.parent {
		i := strings.LastIndexByte(key, '/')
		if i < 1 {
			return fmt.Errorf("%w: it does not begin with a key of %q and a slash", ErrInvalidKey, p.name)
		}
		key = key[:i]
	}
	return nil
}
