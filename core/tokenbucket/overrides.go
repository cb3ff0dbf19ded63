package tokenbucket

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/lockkeeper/lockkeeper/internal/base/keymatch"
	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
)

// Overrides is a plan with other limits for some keys, such as those of a contract. The index of by
// is a key, or a prefix followed by an asterisk:
//
//	tokenbucket.Overrides(tokenbucket.PerMinute(100), map[string]tokenbucket.Plan{
//		"team-7":    tokenbucket.PerMinute(1000),
//		"partner-*": tokenbucket.PerMinute(500),
//		"probe":     tokenbucket.Unlimited(),
//	})
//
// The plan of a key is its own; otherwise that of its longest prefix; otherwise base. An asterisk
// elsewhere stands for itself. All plans keep their tokens in buckets of the same names ([Limits]),
// so a key that gets another plan keeps its used tokens.
//
// The plans in by are a [Limit], [Limits] or [Unlimited]; base may also be a [PlanFunc], which is
// not called for keys that by has a plan for, or [Cached]. Prefixes have at most 16 different
// lengths. The number of keys and prefixes has no bound: a decision looks up the key, and searches
// the lengths. [New] and [Limiter.SetPlan] compile all plans once, and refuse the whole plan if one
// of them makes no sense, with the prefix in the error's text but not a key. Overrides keeps a copy
// of by. If base has overrides itself, by takes the place of these.
func Overrides(base Plan, by map[string]Plan) Plan {
	if o, ok := base.(*overriddenPlan); ok {
		base = o.base
	}
	return &overriddenPlan{base, maps.Clone(by)}
}

type overriddenPlan struct {
	base Plan
	by   map[string]Plan
}

func (o *overriddenPlan) compile(limiter string) (compiledPlan, error) {
	if o.base == nil {
		return compiledPlan{}, fmt.Errorf("%w: Overrides: nil base", ErrInvalidLimit)
	}
	compiled, err := o.base.compile(limiter)
	if err != nil {
		return compiledPlan{}, err
	}
	same := make(map[Limit]*fixedPlan) // many keys have one limit
	compiled.overrides, err = keymatch.New(o.by, func(plan Plan) (*fixedPlan, error) {
		limit, single := plan.(Limit)
		if fixed := same[limit]; single && fixed != nil {
			return fixed, nil
		}
		switch plan.(type) {
		case Limit, Limits, unlimited:
		case nil:
			return nil, errors.New("nil plan")
		default:
			return nil, errors.New("a PlanFunc, Cached or Overrides is no plan of one key")
		}
		c, err := plan.compile(limiter)
		if single {
			same[limit] = c.fixed
		}
		return c.fixed, err
	})
	switch {
	case errors.Is(err, ErrInvalidLimit): // of a plan
		return compiledPlan{}, fmt.Errorf("tokenbucket: Overrides: %w", err)
	case err != nil:
		return compiledPlan{}, fmt.Errorf("%w: Overrides: %w", ErrInvalidLimit, err)
	}
	return compiled, nil
}

// text describes the plan, without its keys.
func (o *overriddenPlan) text() string {
	hash := fnv.New32a()
	for _, pattern := range slices.Sorted(maps.Keys(o.by)) {
		_, _ = hash.Write(textlist.Append(nil, pattern, settingsOf(o.by[pattern]).Text))
	}
	return fmt.Sprintf("%s, %d overrides %08x", settingsOf(o.base).Text, len(o.by), hash.Sum32())
}
