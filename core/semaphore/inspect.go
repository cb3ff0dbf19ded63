package semaphore

import (
	"context"
	"fmt"
	"iter"

	"github.com/lockkeeper/lockkeeper/internal/naming"
)

// Inspect returns the use of a key: its holders and the number of waiters. It is for operators and
// tests: the state may have changed when the caller reads it. Permits of [WithFallback] are not
// included.
//
// It returns [ErrInvalidKey], ctx's error, or one that matches core.ErrUnavailable.
func (s *Semaphore) Inspect(ctx context.Context, key string) (State, error) {
	if err := naming.CheckKey(key); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	return s.store.store.InspectPermits(ctx, s.name, key)
}

// List yields the keys with holders or waiters, in no order. A key that changes during the
// iteration may be seen in its old state, twice, or not at all. The iteration ends with the first
// error. On Redis it scans all keys of the database, so it is for operators.
func (s *Semaphore) List(ctx context.Context) iter.Seq2[State, error] {
	return s.store.store.ListPermits(ctx, s.name)
}
