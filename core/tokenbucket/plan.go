package tokenbucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/keymatch"
)

// Plan is a plan that a [Limiter] enforces: a [Limit], [Limits], [Unlimited], a [PlanFunc], or one
// from [Cached] or [Overrides].
type Plan interface {
	// compile prepares the plan of a limiter with the given name for use.
	compile(limiter string) (compiledPlan, error)
}

// Limits are several limits on one key, such as a burst a second and a quota a day. A decision over
// them is all or nothing: a request that one of them denies charges none of them.
//
// A limit's bucket is kept under its name. For limits without a name:
//   - The first one has the bucket of a plan of one limit, and so keeps it when others are added.
//   - The others have buckets under their periods.
//
// Two limits of the same name, or two unnamed limits of the same period, are an error.
type Limits []Limit

// PlanFunc chooses the limits for a key, for example by the tier of a customer. It is called for
// every decision and must be quick, or [Cached]; its error is the decision's. It returns a [Limit],
// [Limits] or [Unlimited], nothing else.
type PlanFunc func(ctx context.Context, key string) (Plan, error)

// Unlimited is a plan without limits, for a tier of customers, or to switch a limiter off. Every
// decision allows at once, charges nothing, and does not ask the store.
func Unlimited() Plan { return unlimited{} }

type unlimited struct{}

func (unlimited) compile(string) (compiledPlan, error) { return fix(), nil }

// settingsOf returns the settings that limiters of one name must have in common. All PlanFuncs look
// alike, cached or not.
func settingsOf(plan Plan) namesake.Settings {
	switch p := plan.(type) {
	case Limit:
		p.explicitBurst = p.burst != p.count // however it was said
		return namesake.Settings{Text: p.String()}
	case Limits:
		texts := make([]string, len(p))
		for i, l := range p {
			texts[i] = settingsOf(l).Text
		}
		return namesake.Settings{Text: strings.Join(texts, ", ")}
	case unlimited:
		return namesake.Settings{Text: "unlimited"}
	case *overriddenPlan:
		return namesake.Settings{Text: p.text()}
	default:
		return namesake.Settings{Text: "PlanFunc"}
	}
}

// compiledPlan is a plan as a limiter uses it.
type compiledPlan struct {
	overrides *keymatch.Table[*fixedPlan] // the plans of some keys, or nil

	fixed  *fixedPlan                                                // of every other key, or nil
	choose func(ctx context.Context, key string) (*fixedPlan, error) // if there is no fixed plan
	err    error                                                     // of every decision, if there is neither
}

// limits returns the limits of a key.
func (p *compiledPlan) limits(ctx context.Context, key string) (*fixedPlan, error) {
	if plan := p.known(key); plan != nil {
		return plan, nil
	}
	if p.choose != nil {
		return p.choose(ctx, key)
	}
	return nil, p.err
}

// known returns the limits of a key that need no context, or nil.
func (p *compiledPlan) known(key string) *fixedPlan {
	if p.overrides != nil {
		if plan, ok := p.overrides.Get(key); ok {
			return plan
		}
	}
	return p.fixed
}

// fixedPlan is the limits of a key.
type fixedPlan struct {
	meters []meter
	one    []store.Charge // of one token, which most decisions are about
	dated  bool           // charges depend on the time
	mode   Mode

	undecided error // why a request in shadow passes without a decision, or nil
}

func fix(meters ...meter) compiledPlan {
	plan := &fixedPlan{meters: meters, one: charges(meters, 1)}
	for i := range meters {
		plan.dated = plan.dated || meters[i].calendar.unit != noCalendar
	}
	return compiledPlan{fixed: plan}
}

// affords returns an error if n tokens are more than a burst.
func (p *fixedPlan) affords(n int64) error {
	for i := range p.meters {
		if m := &p.meters[i]; n > m.burst {
			return &CostError{Limit: m.name, Cost: n, Burst: m.burst}
		}
	}
	return nil
}

// charges returns the charges of n tokens. No store changes them.
func (p *fixedPlan) charges(n int64) []store.Charge {
	if n == 1 && !p.dated {
		return p.one
	}
	return charges(p.meters, n)
}

func charges(meters []meter, n int64) []store.Charge {
	c := make([]store.Charge, len(meters))
	for i := range meters {
		c[i] = meters[i].charge(n)
	}
	return c
}

func (l Limit) compile(limiter string) (compiledPlan, error) {
	if err := l.check(); err != nil {
		return compiledPlan{}, err
	}
	return fix(newMeter(l, cmp.Or(l.name, limiter), l.name)), nil
}

func (ls Limits) compile(limiter string) (compiledPlan, error) {
	switch len(ls) {
	case 0:
		return compiledPlan{}, fmt.Errorf("%w: no limits", ErrInvalidLimit)
	case 1:
		return ls[0].compile(limiter)
	}
	if len(ls) > maxLimits {
		return compiledPlan{}, fmt.Errorf("%w: %d limits on one key, at most %d are allowed",
			ErrInvalidLimit, len(ls), maxLimits)
	}
	meters := make([]meter, len(ls))
	taken := make(map[string]bool, len(ls))
	unnamed := 0
	for i, l := range ls {
		if err := l.check(); err != nil {
			return compiledPlan{}, err
		}
		known := cmp.Or(l.name, l.period())
		if taken[known] {
			return compiledPlan{}, fmt.Errorf("%w: two limits are called %q; tell them apart with Named", ErrInvalidLimit, known)
		}
		taken[known] = true
		name, bucket := known, known
		if l.name == "" {
			name = limiter + "-" + known
			if unnamed++; unnamed == 1 {
				bucket = ""
			}
		}
		meters[i] = newMeter(l, name, bucket)
	}
	return fix(meters...), nil
}

// maxLimits keeps one decision a small step for the store.
const maxLimits = 16

func (f PlanFunc) compile(limiter string) (compiledPlan, error) {
	if f == nil {
		return compiledPlan{}, fmt.Errorf("%w: nil PlanFunc", ErrInvalidLimit)
	}
	return compiledPlan{choose: func(ctx context.Context, key string) (*fixedPlan, error) {
		return f.limits(ctx, limiter, key)
	}}, nil
}

// limits returns the limits that f chooses for a key.
func (f PlanFunc) limits(ctx context.Context, limiter, key string) (*fixedPlan, error) {
	plan, err := f(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("tokenbucket: choosing the plan: %w", err)
	}
	switch plan := plan.(type) {
	case nil:
		return nil, fmt.Errorf("%w: the PlanFunc returned no plan", ErrInvalidLimit)
	case PlanFunc, *cachedPlans, *overriddenPlan:
		return nil, errors.Join(ErrInvalidLimit, errors.New("tokenbucket: a PlanFunc returned a PlanFunc, Cached or Overrides"))
	default:
		compiled, err := plan.compile(limiter)
		if err != nil {
			return nil, err
		}
		return compiled.limits(ctx, key)
	}
}
