package semaphore

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
)

// State is the state of the semaphore of a key.
type State struct {
	Key     string
	InUse   int      // the weights of all permits, claimed or not
	Holders []Holder // 100 of them at most
	Waiting int      // requests in the queue
}

// Holder is one permit of a semaphore.
type Holder struct {
	Fence     int64
	Weight    int
	Meta      string        // the holder's label ([WithHolder])
	Remaining time.Duration // until it expires, unless it is renewed
}

func stateOf(s store.SemaphoreState) State {
	state := State{Key: s.Key, InUse: s.InUse, Waiting: s.Waiting}
	for _, h := range s.Holders {
		state.Holders = append(state.Holders, Holder(h))
	}
	return state
}

// Inspect returns the use of a key: its holders and the number of waiters. It is for operators and
// tests: the state may have changed when the caller reads it.
//
// It returns [ErrInvalidKey], ctx's error, or one that matches store.ErrUnavailable.
func (s *Semaphore) Inspect(ctx context.Context, key string) (State, error) {
	if err := naming.CheckKey(key); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	state, err := s.pool.store.InspectPermits(ctx, s.name, key)
	return stateOf(state), err
}

// List yields the keys with holders or waiters, in no order. A key that changes during the
// iteration may be seen in its old state, twice, or not at all. The iteration ends with the first
// error. On Redis it scans all keys of the database, so it is for operators.
func (s *Semaphore) List(ctx context.Context) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		for state, err := range s.pool.store.ListPermits(ctx, s.name) {
			if !yield(stateOf(state), err) {
				return
			}
		}
	}
}
