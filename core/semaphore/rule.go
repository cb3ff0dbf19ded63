package semaphore

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/internal/base/keymatch"
)

// Rule is all that can change of a Semaphore and its variants while they are in use. The capacity
// is either fixed or adaptive, by the options of [New].
type Rule struct {
	// Off gives every key the largest capacity, store.MaxCapacity, so that in practice nothing is
	// refused or waits, except behind requests of processes in which the Semaphore is on. It goes
	// before all else, [WithCapacityFunc] included. The store still grants permits, and counts
	// them. An adaptive capacity does not change until the Semaphore is on again.
	Off bool

	Capacity int            // as of [Semaphore.SetCapacities]; 0 if it is adaptive
	ByKey    map[string]int // as of SetCapacities

	Target         time.Duration // as of [Semaphore.SetAdaptiveCapacity]; 0 if the capacity is fixed
	Floor, Ceiling int

	Tiers TierShares // as of [Semaphore.SetTierShares]
}

// compiledRule is a rule as requests use it. It is replaced as a whole. Its bounds of an adaptive
// capacity are not used: the controller has them.
type compiledRule struct {
	Rule
	byKey *keymatch.Table[int] // nil if no key has a capacity of its own
}

// Rule returns the present rule: with it SetRule undoes a later one. Its map must not be changed.
func (s *Semaphore) Rule() Rule {
	r := s.rule.Load().Rule
	if a := s.adaptive; a != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		r.Target, r.Floor, r.Ceiling = a.set.Target, a.set.Floor, a.set.Ceiling
	}
	return r
}

// SetRule is [Semaphore.SetCapacities] or [Semaphore.SetAdaptiveCapacity], and
// [Semaphore.SetTierShares], in one step: every request is weighed by the former rule or by this
// one. Waiting requests keep their places. An error is theirs, or says that the rule has a fixed
// capacity and the Semaphore an adaptive one, or the other way round. Then nothing is changed.
func (s *Semaphore) SetRule(r Rule) error {
	set, err := s.PrepareRule(r)
	if err == nil {
		set()
	}
	return err
}

// PrepareRule is [Semaphore.SetRule] in two steps, for a change of several mechanisms: it compiles
// the rule, and changes nothing. set puts the rule in force, at once and as often as it is called.
func (s *Semaphore) PrepareRule(r Rule) (set func(), err error) {
	adapt := &lease.Adaptive{Target: r.Target, Floor: r.Floor, Ceiling: r.Ceiling}
	compiled := &compiledRule{Rule: r}
	compiled.ByKey = maps.Clone(r.ByKey)
	fixed, adaptive := r.Capacity != 0 || len(r.ByKey) > 0, *adapt != lease.Adaptive{}
	switch {
	case s.adaptive == nil && adaptive:
		return nil, errors.New("semaphore: the capacity is fixed, and the rule has an adaptive one")
	case s.adaptive == nil:
		compiled.byKey, err = compileCapacities(r.Capacity, r.ByKey)
	case fixed:
		return nil, fmt.Errorf("%w: it is adaptive, and the rule has a fixed one", ErrInvalidCapacity)
	default:
		err = checkAdaptive(adapt)
	}
	if err == nil {
		err = r.Tiers.check()
	}
	if err != nil {
		return nil, err
	}
	return func() {
		s.changeRule(func(now *compiledRule) {
			*now = *compiled
			if s.adaptive != nil {
				s.adaptive.change(s.pool, *adapt, r.Off)
			}
		})
	}, nil
}

// changeRule replaces the rule. Waiting requests are weighed again.
func (s *Semaphore) changeRule(change func(*compiledRule)) {
	s.changing.Lock()
	defer s.changing.Unlock()
	next := *s.rule.Load()
	change(&next)
	s.rule.Store(&next)
	s.pool.Resize()
	s.namesake.Change(s.settings(&next))
}

// settings returns the settings under a rule.
func (s *Semaphore) settings(r *compiledRule) namesake.Settings {
	config, capacity := *s.config, r.Capacity
	if a := s.adaptive; a != nil {
		a.mu.Lock()
		set := a.set
		a.mu.Unlock()
		config.Adaptive, capacity = &set, set.Floor
	}
	text := settings(&config, capacity)
	if r.Off {
		text.Text += " (off)"
	}
	return text
}
