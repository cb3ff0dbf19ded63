package semaphore

import (
	"context"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// State is the state of the semaphore of a key.
type State struct {
	Key     string
	InUse   int      // the weights of all permits
	Holders []Holder // 100 of them at most
	Waiting int      // requests in the queue
	Waiters []Waiter // the first 100 of them
}

// Holder is one permit of a semaphore.
type Holder struct {
	Fence, LastFence int64 // the numbers that it may use when it is handed on
	Weight           int
	Label            string        // of the holder ([WithHolder])
	Age              time.Duration // since it was granted; it may have been handed on since
	Remaining        time.Duration // until it expires, unless it is renewed
}

// Waiter is one request in the queue. A process has up to 16 for all of its waiters with the same
// weight and settings.
type Waiter struct {
	Weight, Reserve int
	Label           string        // of the waiter ([WithHolder])
	Age             time.Duration // since it joined the queue
}

func stateOf(s store.LeaseState) State {
	state := State{Key: s.Key, InUse: s.InUse, Waiting: s.Waiting}
	for _, h := range s.Holders {
		state.Holders = append(state.Holders, Holder(h))
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, Waiter(w))
	}
	return state
}

// Inspect returns the use of a key: its holders and the requests in its queue. It is for operators
// and tests: the state may have changed when the caller reads it. Waiting also counts the callers
// that wait in this process without a place in the store; it does not count such callers of other
// processes.
//
// It returns [ErrInvalidKey], ctx's error, or one that matches store.ErrUnavailable.
func (s *Semaphore) Inspect(ctx context.Context, key string) (State, error) {
	state, err := s.pool.Inspect(ctx, key)
	if err == nil {
		state.Waiting += s.pool.Backlog(key)
	}
	return stateOf(state), err
}

// List yields the keys with holders or waiters, in no order. A key that changes during the
// iteration may be seen in its old state, twice, or not at all. The iteration ends with the first
// error. On Redis it scans all keys of the database, so it is for operators.
func (s *Semaphore) List(ctx context.Context) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		s.pool.List(ctx, func(state store.LeaseState, err error) bool { return yield(stateOf(state), err) })
	}
}

// ForceRelease releases the permit with this first fence (see [Semaphore.Inspect]), and ends its
// context with [ErrLost]: at once if the holder receives the store's push, otherwise at its next
// renewal. It reports whether there was such a permit. The former holder runs until it checks its
// context: until then more than the capacity may be in use.
func (s *Semaphore) ForceRelease(ctx context.Context, key string, fence int64) (bool, error) {
	return s.pool.Revoke(ctx, key, fence)
}
