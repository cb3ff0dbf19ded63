package lock

import (
	"context"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// State is the state of a lock.
type State struct {
	Key     string
	Holders []Holder // one exclusive or any number of shared ones; 100 of them at most
	Waiting int      // requests in the queue
	Waiters []Waiter // the first 100 of them
}

// Holder is one hold of a lock.
type Holder struct {
	Fence, LastFence int64         // of an exclusive hold, the fences that it may use
	Shared           bool          // a shared hold has one fence, which only tells it from others
	Label            string        // of the holder ([WithHolder])
	Age              time.Duration // since it was granted; it may have been handed on since
	Remaining        time.Duration // until it expires, unless it is renewed
}

// Waiter is one request in the queue. It stands for all waiters of its process with the same
// settings, unless it is shared or fair.
type Waiter struct {
	Label  string // of the waiter ([WithHolder])
	Shared bool
	Age    time.Duration // since it joined the queue
}

func stateOf(s store.LeaseState) State {
	state := State{Key: s.Key, Waiting: s.Waiting}
	for _, h := range s.Holders {
		state.Holders = append(state.Holders, Holder{h.Fence, h.LastFence, h.Weight == shared, h.Label, h.Age, h.Remaining})
	}
	for _, w := range s.Waiters {
		state.Waiters = append(state.Waiters, Waiter{w.Label, w.Weight == shared, w.Age})
	}
	return state
}

// Inspect returns the holders of the lock of a key, and the requests in its queue. It is for
// operators and tests: the state may have changed when the caller reads it.
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	state, err := l.pool.Inspect(ctx, key)
	return stateOf(state), err
}

// List yields the locks with holders or waiters, in no order. A lock that changes during the
// iteration may be seen in its old state, twice, or not at all. The iteration ends with the first
// error. On Redis it scans all keys of the database, so it is for operators.
func (l *Locker) List(ctx context.Context) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		l.pool.List(ctx, func(s store.LeaseState, err error) bool { return yield(stateOf(s), err) })
	}
}

// ForceUnlock releases the hold with this fence (see [Locker.Inspect]), and ends its lease's
// context with [ErrLost]: at once if the holder receives the store's push, otherwise at its next
// renewal. It reports whether there was such a hold. The former holder runs until it checks its
// context; only the fence stops its writes.
func (l *Locker) ForceUnlock(ctx context.Context, key string, fence int64) (bool, error) {
	return l.pool.Revoke(ctx, key, fence)
}
