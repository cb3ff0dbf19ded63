package semaphore

import (
	"errors"
	"fmt"
	"maps"
	"math"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/keymatch"
)

func checkCapacity(n int) error {
	if n < 1 || n > store.MaxCapacity {
		return fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidCapacity, n, store.MaxCapacity)
	}
	return nil
}

// SetCapacity changes the capacity of every key that [WithCapacityFunc] does not set, in this
// process, for this Semaphore and its variants ([Semaphore.With]). It is
// [Semaphore.SetCapacities](n, nil): no key keeps a capacity of its own.
//
// Waiting requests keep their places and use the new capacity. Requests with a larger weight are
// withdrawn and return [ErrInvalidWeight]. Held permits are not affected: if more is in use than
// the new capacity, no request is granted until enough was released. Other processes keep their
// capacity until it is set there too: the weight in use never exceeds the largest of them.
//
// An error matches [ErrInvalidCapacity], and the capacity stays unchanged.
func (s *Semaphore) SetCapacity(n int) error { return s.SetCapacities(n, nil) }

// SetCapacities is [Semaphore.SetCapacity] with other capacities for some keys, in place of those
// that were set before:
//
//	err := reports.SetCapacities(4, map[string]int{"acme": 16, "trial-*": 1})
//
// A key of the map that ends in an asterisk is a prefix; it stands for all keys that begin with it.
// A key has the capacity that is set for it; or else that of its longest prefix; or else base. The
// capacity that [WithCapacityFunc] returns for a key goes before all of them.
//
// An error matches [ErrInvalidCapacity] if a capacity is out of its range, and [ErrInvalidKey] if a
// key is empty, longer than 1,024 bytes or a bare asterisk, or if the prefixes are of more than 16
// different lengths. Then no capacity is changed. The error names a prefix, and no key. With
// [WithAdaptiveCapacity] every call returns an error that matches ErrInvalidCapacity.
func (s *Semaphore) SetCapacities(base int, byKey map[string]int) error {
	if s.adaptive != nil {
		return fmt.Errorf("%w: WithAdaptiveCapacity decides about it; use SetAdaptiveCapacity", ErrInvalidCapacity)
	}
	table, err := compileCapacities(base, byKey)
	if err != nil {
		return err
	}
	byKey = maps.Clone(byKey)
	s.changeRule(func(r *compiledRule) { r.Capacity, r.ByKey, r.byKey = base, byKey, table })
	return nil
}

// compileCapacities returns the capacities of keys, or nil if none has one of its own.
func compileCapacities(base int, byKey map[string]int) (*keymatch.Table[int], error) {
	if err := checkCapacity(base); err != nil || len(byKey) == 0 {
		return nil, err
	}
	table, err := keymatch.New(byKey, func(n int) (int, error) { return n, checkCapacity(n) })
	switch {
	case errors.Is(err, ErrInvalidCapacity):
		return nil, fmt.Errorf("semaphore: SetCapacities: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: SetCapacities: %w", ErrInvalidKey, err)
	}
	return table, nil
}

// Capacity returns the capacity that a request for the key uses now, which with
// [WithAdaptiveCapacity] is the present one. An error matches
// [ErrInvalidKey], or [ErrInvalidCapacity] if [WithCapacityFunc]'s function has returned an invalid
// one.
func (s *Semaphore) Capacity(key string) (int, error) {
	if err := s.pool.CheckKey(key); err != nil {
		return 0, err
	}
	return s.capacityOf(s.rule.Load(), s.config, key)
}

func (c *core) capacityOf(rule *compiledRule, config *lease.Config, key string) (int, error) {
	if rule.Off {
		return store.MaxCapacity, nil
	}
	if config.CapacityOf != nil {
		if n := config.CapacityOf(key); n != 0 {
			return n, checkCapacity(n)
		}
	}
	if c.adaptive != nil {
		return int(c.adaptive.capacity.Load()), nil
	}
	if n, ok := rule.byKey.Get(key); ok {
		return n, nil
	}
	return rule.Capacity, nil
}

// weigh returns the capacity and the reserve that a request of a weight is sent with.
func (c *core) weigh(config *lease.Config, key string, n int) (capacity, reserve int, err error) {
	if n < 1 {
		return 0, 0, fmt.Errorf("%w: %d is less than 1", ErrInvalidWeight, n)
	}
	rule := c.rule.Load()
	if capacity, err = c.capacityOf(rule, config, key); err == nil {
		reserve = reserveOf(rule, config, capacity)
	}
	switch {
	case err != nil:
		return 0, 0, err
	case n > capacity:
		return 0, 0, fmt.Errorf("%w: %d is more than the capacity of %d", ErrInvalidWeight, n, capacity)
	case n > capacity-reserve:
		return 0, 0, fmt.Errorf("%w: %d is more than the capacity of %d less the reserve of %d", ErrInvalidWeight, n, capacity, reserve)
	}
	return capacity, reserve, nil
}

// shareOf returns how much of a capacity a share of it is as a reserve.
func shareOf(capacity int, share float64) int {
	const rounding = 1e-6 // 0.29 of 100 is 28.999999999999996
	return min(int(math.Floor(float64(capacity)*share+rounding)), capacity-1)
}
