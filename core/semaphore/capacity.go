package semaphore

import (
	"fmt"
	"math"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func checkCapacity(n int) error {
	if n < 1 || n > store.MaxCapacity {
		return fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidCapacity, n, store.MaxCapacity)
	}
	return nil
}

// SetCapacity changes the capacity of every key that [WithCapacityFunc] does not set, in this
// process, for this Semaphore and its variants ([Semaphore.With]).
//
// Waiting requests keep their places and use the new capacity. Requests with a larger weight are
// withdrawn and return [ErrInvalidWeight]. Held permits are not affected: if more is in use than
// the new capacity, no request is granted until enough was released. Other processes keep their
// capacity until it is set there too: the weight in use never exceeds the largest of them.
//
// An error matches [ErrInvalidCapacity], and the capacity stays unchanged.
func (s *Semaphore) SetCapacity(n int) error {
	if err := checkCapacity(n); err != nil {
		return err
	}
	s.capacity.Store(int64(n))
	s.pool.Resize()
	s.namesake.Change(settings(s.config, n))
	return nil
}

// Capacity returns the capacity that a request for the key uses now. An error matches
// [ErrInvalidKey], or [ErrInvalidCapacity] if [WithCapacityFunc]'s function has returned an invalid
// one.
func (s *Semaphore) Capacity(key string) (int, error) {
	if err := s.pool.CheckKey(key); err != nil {
		return 0, err
	}
	return s.capacityOf(s.config, key)
}

func (c *core) capacityOf(config *lease.Config, key string) (int, error) {
	if config.CapacityOf != nil {
		if n := config.CapacityOf(key); n != 0 {
			return n, checkCapacity(n)
		}
	}
	return int(c.capacity.Load()), nil
}

// weigh returns the capacity and the reserve that a request of a weight is sent with.
func (c *core) weigh(config *lease.Config, key string, n int) (capacity, reserve int, err error) {
	if n < 1 {
		return 0, 0, fmt.Errorf("%w: %d is less than 1", ErrInvalidWeight, n)
	}
	if capacity, err = c.capacityOf(config, key); err == nil {
		reserve = c.reserveOf(config, capacity)
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
