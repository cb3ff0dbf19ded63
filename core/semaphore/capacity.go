package semaphore

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
)

// size is the capacity of a Semaphore until it is changed, or the Semaphore is closed.
type size struct {
	capacity int
	over     context.Context // ends then
	end      context.CancelFunc
}

func (c *core) newSize(capacity int) *size {
	over, end := context.WithCancel(c.closing)
	return &size{capacity, over, end}
}

func checkCapacity(n int) error {
	if n < 1 || n > store.MaxCapacity {
		return fmt.Errorf("%w: %d is not between 1 and %d", ErrInvalidCapacity, n, store.MaxCapacity)
	}
	return nil
}

// SetCapacity changes the capacity of every key that [WithCapacityFunc] does not set, in this
// process, for this Semaphore and its variants ([Semaphore.With]).
//
// Waiting requests keep their places and use the new capacity; those with a larger weight are
// withdrawn and return [ErrInvalidWeight]. Held permits are not affected: if more is in use than
// the new capacity, no request is granted until enough was released. Other processes keep their
// capacity until it is set there too: the weight in use never exceeds the largest of them.
//
// It sends nothing to the store itself. An error matches [ErrInvalidCapacity], and the capacity
// stays unchanged.
func (s *Semaphore) SetCapacity(n int) error {
	if err := checkCapacity(n); err != nil {
		return err
	}
	s.size.Swap(s.newSize(n)).end()
	s.namesake.Change(s.config.settings(n))
	return nil
}

// Capacity returns the capacity that a request for the key uses now. An error matches
// [ErrInvalidKey], or [ErrInvalidCapacity] if the function of [WithCapacityFunc] has returned an
// invalid one.
func (s *Semaphore) Capacity(key string) (int, error) {
	if err := naming.CheckKey(key); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return s.capacityOf(s.size.Load(), key)
}

func (s *Semaphore) capacityOf(now *size, key string) (int, error) {
	if s.config.capacityOf == nil {
		return now.capacity, nil
	}
	n := s.config.capacityOf(key)
	if n == 0 {
		return now.capacity, nil
	}
	return n, checkCapacity(n)
}

// weigh returns the capacity that a request of a weight is sent with.
func (s *Semaphore) weigh(now *size, key string, n int) (int, error) {
	capacity, err := s.capacityOf(now, key)
	if err != nil {
		return 0, err
	}
	if n > capacity {
		return 0, fmt.Errorf("%w: %d is more than the capacity of %d", ErrInvalidWeight, n, capacity)
	}
	return capacity, nil
}
