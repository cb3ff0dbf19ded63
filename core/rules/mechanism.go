package rules

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// mechanism is what rules change.
type mechanism interface {
	// id returns the field of its kind, and its name.
	id() (kind, name string)
	// prepare compiles what a document makes of the settings that the program gave. An error is the
	// rule's.
	prepare(d *document) (change, error)
}

// change puts prepared settings in force, or those before them.
type change struct{ apply, undo func() error }

// mechanismOf returns one of the mechanisms that have rules, with its present settings as the
// program's.
func mechanismOf(m any) (mechanism, error) {
	switch m := m.(type) {
	case *tokenbucket.Limiter:
		if m != nil {
			return newLimiter(m)
		}
	case *semaphore.Semaphore:
		if m != nil {
			return newSem(m)
		}
	case nil:
	default:
		return nil, fmt.Errorf("For: a %T has no rules; want a *tokenbucket.Limiter or a *semaphore.Semaphore", m)
	}
	return nil, errors.New("For: nil mechanism")
}

// limiter is a limiter with rules.
type limiter struct {
	*tokenbucket.Limiter
	given   tokenbucket.Rule // by the program
	present func() error     // puts the rule in force that is
}

func newLimiter(l *tokenbucket.Limiter) (*limiter, error) {
	given := l.Rule()
	present, err := l.PrepareRule(given)
	return &limiter{l, given, present}, err
}

func (l *limiter) id() (kind, name string) { return limits, l.Name() }

func (l *limiter) prepare(d *document) (change, error) {
	set, err := l.PrepareRule(l.rule(d))
	if err != nil {
		return change{}, err
	}
	before := l.present
	return change{
		apply: func() error { l.present = set; return set() },
		undo:  func() error { l.present = before; return before() },
	}, nil
}

// rule returns what a document makes of the program's rule.
func (l *limiter) rule(d *document) tokenbucket.Rule {
	r := l.given
	of := d.limits[l.Name()]
	if of == nil {
		of = &limitRule{}
	}
	if of.plan != nil {
		r.Plan = of.plan
	}
	if of.overrides != nil {
		r.Plan = tokenbucket.Overrides(r.Plan, of.overrides)
	}
	if of.candidate != nil {
		r.Candidate = of.candidate
	}
	switch mode := cmp.Or(of.mode, d.mode); {
	case mode == modeShadow:
		r.Enforcement = tokenbucket.Enforcement{Mode: tokenbucket.Shadow}
	case mode == modeOff:
		r.Enforcement = tokenbucket.Enforcement{Mode: tokenbucket.Off}
	case of.share > 0:
		r.Enforcement = tokenbucket.Enforcement{Share: of.share}
	case mode == modeEnforce && r.Enforcement.Mode != tokenbucket.Enforce:
		r.Enforcement = tokenbucket.Enforcement{}
	}
	return r
}

// sem is a semaphore with rules.
type sem struct {
	*semaphore.Semaphore
	given   semaphore.Rule // by the program
	present func()         // puts the rule in force that is
}

func newSem(s *semaphore.Semaphore) (*sem, error) {
	given := s.Rule()
	present, err := s.PrepareRule(given)
	return &sem{s, given, present}, err
}

func (s *sem) id() (kind, name string) { return semaphores, s.Name() }

func (s *sem) prepare(d *document) (change, error) {
	set, err := s.PrepareRule(s.rule(d))
	if err != nil {
		return change{}, err
	}
	before := s.present
	to := func(f func()) func() error {
		return func() error { s.present = f; f(); return nil }
	}
	return change{to(set), to(before)}, nil
}

// rule returns what a document makes of the program's rule.
func (s *sem) rule(d *document) semaphore.Rule {
	r := s.given
	of := d.semaphores[s.Name()]
	if of == nil {
		of = &semaphoreRule{}
	}
	if of.capacity > 0 {
		r.Capacity, r.ByKey = of.capacity, nil
	}
	if of.overrides != nil {
		r.ByKey = of.overrides
	}
	if of.target > 0 {
		r.Target, r.Floor, r.Ceiling = of.target, of.min, of.max
	}
	if of.tiers != nil {
		r.Tiers = semaphore.TierShares{Normal: of.tiers.normal, Low: of.tiers.low, Background: of.tiers.background}
	}
	switch cmp.Or(of.mode, d.mode) { // a semaphore has no shadow, and stays on in that of a document
	case modeOff:
		r.Off = true
	case modeEnforce:
		r.Off = false
	}
	return r
}
