package lock

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/naming"
)

// State is the state of a lock.
type State struct {
	Key     string
	Holders []Holder // one exclusive or any number of shared ones
	Waiting int      // requests in the queue
}

// Holder is one hold of a lock.
type Holder struct {
	Fence, LastFence int64         // of an exclusive hold, the fences that it may use
	Shared           bool          // a shared hold has one fence, which only tells it from others
	Meta             string        // the holder's label ([WithHolder])
	Remaining        time.Duration // until it expires, unless it is renewed
}

// stateOf returns a store's state with the labels that users set.
func stateOf(s store.LockState) State {
	state := State{Key: s.Key, Waiting: s.Waiting}
	for _, h := range s.Holders {
		h.Meta, _ = cutSpan(h.Meta)
		state.Holders = append(state.Holders, Holder(h))
	}
	return state
}

// Inspect returns the holders of the lock of a key, and the number of waiters. It is for operators
// and tests: the state may have changed when the caller reads it.
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	if err := naming.CheckKey(key); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	state, err := l.store.InspectLock(ctx, l.name, key)
	return stateOf(state), err
}

// List yields the locks with holders or waiters, in no order. A lock that changes during the
// iteration may be seen in its old state, twice, or not at all. The iteration ends with the first
// error. On Redis it scans all keys of the database, so it is for operators.
func (l *Locker) List(ctx context.Context) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		for state, err := range l.store.ListLocks(ctx, l.name) {
			if !yield(stateOf(state), err) {
				return
			}
		}
	}
}

// ForceUnlock releases the hold with this fence (see [Locker.Inspect]), and ends its lease's
// context with [ErrLost]: at once if the holder receives the store's push, otherwise at its next
// renewal. It reports whether there was such a hold. The former holder runs until it checks its
// context; only the fence stops its writes.
func (l *Locker) ForceUnlock(ctx context.Context, key string, fence int64) (bool, error) {
	if err := naming.CheckKey(key); err != nil {
		return false, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return l.store.ForceUnlock(ctx, l.name, key, fence)
}
