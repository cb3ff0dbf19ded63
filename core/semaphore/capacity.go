package semaphore

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
)

// size is the capacity of a Semaphore until it is replaced, or until the Semaphore is closed.
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

// SetCapacity changes the capacity of every key that [WithCapacityFunc] does not set, in this process,
// for this Semaphore and all that were made from it.
//
// Requests that wait are served with the new one, in their old places; those for more than it are
// withdrawn and return [ErrInvalidWeight]. Permits that are held stay as they are: below what is in use
// it drains, so that nobody gets a permit until so many have been released. Other processes keep theirs
// until they are told too: what is in use never exceeds the largest of them.
//
// It sends nothing itself. An error matches [ErrInvalidCapacity], and leaves the old one in force.
func (s *Semaphore) SetCapacity(n int) error {
	if err := checkCapacity(n); err != nil {
		return err
	}
	s.size.Swap(s.newSize(n)).end()
	s.namesake.Change(s.config.shared(n))
	return nil
}

// Capacity returns the capacity that a request for the key is sent with now. An error matches
// [ErrInvalidKey], or [ErrInvalidCapacity] if it is what [WithCapacityFunc] has answered.
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
