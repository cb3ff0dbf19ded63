package tokenbucket

import (
	"context"
	"errors"
	"fmt"
)

// Plan is what a [Limiter] enforces: a [Limit], [Limits] or a [PlanFunc].
type Plan interface {
	// compile prepares the plan of a limiter with the given name for use.
	compile(limiter string) (compiledPlan, error)
}

// Limits are several limits on one key, such as a burst a second and a quota a day. A decision over
// them is all or nothing: a request that one of them denies charges none of them.
//
// A limit's bucket is kept under its name, or under its period when it has none; two limits of
// the same name, or of the same period and unnamed, are an error.
type Limits []Limit

// PlanFunc chooses the limits for a key, as when every tier of customers has its own. It is called
// for every decision and must be quick; an error that it returns is the decision's. It returns a
// [Limit] or [Limits], not another PlanFunc.
type PlanFunc func(ctx context.Context, key string) (Plan, error)

// compiledPlan returns the meters of a key's limits.
type compiledPlan interface {
	meters(ctx context.Context, key string) ([]meter, error)
}

// fixedPlan is the same for every key.
type fixedPlan []meter

func (p fixedPlan) meters(context.Context, string) ([]meter, error) { return p, nil }

func (l Limit) compile(limiter string) (compiledPlan, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	name := l.name
	if name == "" {
		name = limiter
	}
	return fixedPlan{newMeter(l, name, l.name)}, nil
}

func (ls Limits) compile(limiter string) (compiledPlan, error) {
	switch len(ls) {
	case 0:
		return nil, fmt.Errorf("%w: no limits", ErrInvalidLimit)
	case 1:
		return ls[0].compile(limiter)
	}
	if len(ls) > maxLimits {
		return nil, fmt.Errorf("%w: %d limits on one key, at most %d are allowed", ErrInvalidLimit, len(ls), maxLimits)
	}
	plan := make(fixedPlan, len(ls))
	taken := make(map[string]bool, len(ls))
	for i, l := range ls {
		if err := l.check(); err != nil {
			return nil, err
		}
		name, bucket := l.name, l.name
		if name == "" {
			bucket = shortDuration(l.per)
			name = limiter + "-" + bucket
		}
		if taken[bucket] {
			return nil, fmt.Errorf("%w: two limits are called %q; tell them apart with Named", ErrInvalidLimit, bucket)
		}
		taken[bucket] = true
		plan[i] = newMeter(l, name, bucket)
	}
	return plan, nil
}

// maxLimits keeps one decision a small step for the store.
const maxLimits = 16

func (f PlanFunc) compile(limiter string) (compiledPlan, error) {
	if f == nil {
		return nil, fmt.Errorf("%w: nil PlanFunc", ErrInvalidLimit)
	}
	return perKeyPlan{limiter, f}, nil
}

type perKeyPlan struct {
	limiter string
	choose  PlanFunc
}

func (p perKeyPlan) meters(ctx context.Context, key string) ([]meter, error) {
	plan, err := p.choose(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("tokenbucket: choosing the plan: %w", err)
	}
	switch plan := plan.(type) {
	case nil:
		return nil, fmt.Errorf("%w: the PlanFunc returned no plan", ErrInvalidLimit)
	case PlanFunc:
		return nil, errors.Join(ErrInvalidLimit, errors.New("tokenbucket: a PlanFunc returned a PlanFunc"))
	default:
		compiled, err := plan.compile(p.limiter)
		if err != nil {
			return nil, err
		}
		return compiled.meters(ctx, key)
	}
}
