package semaphore

import (
	"context"
	"fmt"
	"iter"

	"github.com/lockkeeper/lockkeeper/internal/naming"
)

// Inspect says what is in use of a key, by whom, and how many requests wait. For operators and tests:
// by the time that the caller reads it, it may be different. Permits of [WithFallback] are not in it.
//
// It returns [ErrInvalidKey], ctx's error, or one that matches core.ErrUnavailable.
func (s *Semaphore) Inspect(ctx context.Context, key string) (State, error) {
	if err := naming.CheckKey(key); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return s.store.store.InspectPermits(ctx, s.name, key)
}

// List yields the keys that are in use or waited for, in no order. One that changes meanwhile may be
// seen as it was, twice, or not at all. It ends with the first error. On Redis it goes through all keys
// of the database, so it is for operators.
func (s *Semaphore) List(ctx context.Context) iter.Seq2[State, error] {
	return s.store.store.ListPermits(ctx, s.name)
}
