package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Limiter returns a limiter of a name: this process's own, or one with the limits that another process
// of the fleet says it has. The caller calls free when it needs the limiter no more.
//
// The error matches ErrUnknownHere if there is none, and if other processes' limits depend on the key or
// differ: a hold of one limit's bucket would not hold that of another.
func Limiter(ctx context.Context, st store.Documents, name string) (l *tokenbucket.Limiter, free func(), err error) {
	if own, ok := inspect.Limiter(st, name); ok {
		return own, func() {}, nil
	}
	able, err := store.As[store.Store](st)
	if err != nil {
		return nil, nil, err
	}
	fleet, err := presence.Fleet(ctx, st)
	if err != nil {
		return nil, nil, err
	}
	settings := settingsOf(fleet, name)
	switch len(settings) {
	case 0:
		return nil, nil, fmt.Errorf("%w: no process that is alive has a limiter %q", ErrUnknownHere, name)
	case 1:
	default:
		return nil, nil, fmt.Errorf("%w: limiters %q of several processes differ (%s)", ErrUnknownHere, name, strings.Join(settings, "; "))
	}
	rule, err := ruleOf(settings[0])
	if err != nil {
		return nil, nil, fmt.Errorf("%w: the limits of %q are known to its own processes only (%s)", ErrUnknownHere, name, settings[0])
	}
	l, err = tokenbucket.New(unlisted{able}, name, rule.Plan)
	if err == nil {
		err = l.SetRule(rule)
	}
	if err != nil {
		return nil, nil, err
	}
	return l, func() { _ = l.Close() }, nil
}

// unlisted is a store that does not list the mechanisms on it. One that is made for a call is not this
// process's own: concurrent calls would find it, with its settings, and it would end under them.
type unlisted struct{ store.Store }

// settingsOf returns the different settings of limiters of a name on the store of the fleet's documents,
// which is the first one of each process.
func settingsOf(fleet []presence.Process, name string) (different []string) {
	for i := range fleet {
		for j := range fleet[i].Mechanisms {
			m := &fleet[i].Mechanisms[j]
			if m.Kind == "rate_limit" && m.Name == name && m.Store == 0 && !slices.Contains(different, m.Settings) {
				different = append(different, m.Settings)
			}
		}
	}
	return different
}

// ruleOf reads the settings of a limiter, as its process describes them. One that is off is in shadow
// here, so that its buckets can be seen.
func ruleOf(settings string) (r tokenbucket.Rule, err error) {
	text, enforcement, _ := strings.Cut(settings, " (")
	share, isShare := strings.CutPrefix(enforcement, "share=")
	switch {
	case enforcement == "shadow)", enforcement == "off)":
		r.Enforcement.Mode = tokenbucket.Shadow
	case isShare:
		r.Enforcement.Share, err = strconv.ParseFloat(strings.TrimSuffix(share, ")"), 64)
	case enforcement != "":
		err = fmt.Errorf("%q is no enforcement", enforcement)
	}
	if err != nil {
		return r, err
	}
	r.Plan, err = planOf(text)
	return r, err
}

// planOf reads limits.
func planOf(settings string) (tokenbucket.Plan, error) {
	var plan tokenbucket.Limits
	for text := range strings.SplitSeq(settings, ", ") {
		limit, err := tokenbucket.ParseLimit(text)
		if err != nil {
			return nil, err
		}
		plan = append(plan, limit)
	}
	if len(plan) == 1 {
		return plan[0], nil
	}
	return plan, nil
}

// Guard returns a guard of a name: this process's own, or one with default settings, which can
// inspect operations by their IDs, and resolve them without a result. The caller calls free when it
// needs the guard no more.
func Guard(st store.Documents, name string, opts ...guard.Option) (g *guard.Guard, free func(), err error) {
	if own, ok := inspect.Guard(st, name); ok {
		return own, func() {}, nil
	}
	able, err := store.As[store.Store](st)
	if err != nil {
		return nil, nil, err
	}
	g, err = guard.New(unlisted{able}, name, opts...)
	if err != nil {
		return nil, nil, errors.Join(ErrInvalid, err)
	}
	return g, func() { _ = g.Close() }, nil
}
