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

// stateOf returns a store's state without the spans in the holders' labels.
func stateOf(s store.LockState) State {
	state := State{Key: s.Key, Waiting: s.Waiting}
	for _, h := range s.Holders {
		h.Meta, _ = cutSpan(h.Meta)
		state.Holders = append(state.Holders, Holder(h))
	}
	return state
}

// Inspect says who holds the lock of a key, and how many wait for it. For operators and tests: by
// the time that the caller reads it, it may be different.
func (l *Locker) Inspect(ctx context.Context, key string) (State, error) {
	if err := naming.CheckKey(key); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	state, err := l.store.InspectLock(ctx, l.name, key)
	return stateOf(state), err
}

// List yields the locks that are held or waited for, in no order. A lock that changes meanwhile may
// be seen as it was, twice, or not at all. It ends with the first error. On Redis it goes through
// all keys of the database, so it is for operators.
func (l *Locker) List(ctx context.Context) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		for state, err := range l.store.ListLocks(ctx, l.name) {
			if !yield(stateOf(state), err) {
				return
			}
		}
	}
}

// ForceUnlock takes the lock from the hold that has this fence (see [Locker.Inspect]), as if it had
// been released, and ends its lease's context with [ErrLost]: at once if the holder can be told,
// otherwise when it renews. It reports whether there was such a hold. What the loser is doing goes on
// until it looks at its context; only its fence keeps its writes out.
func (l *Locker) ForceUnlock(ctx context.Context, key string, fence int64) (bool, error) {
	if err := naming.CheckKey(key); err != nil {
		return false, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return l.store.ForceUnlock(ctx, l.name, key, fence)
}
