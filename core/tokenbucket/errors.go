package tokenbucket

import (
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrInvalidLimit is matched by what [New], [Limiter.SetPlan] and [ParseLimit] return for a
	// limit or a plan that cannot be kept. The text says which part of it is wrong, and why.
	ErrInvalidLimit = errors.New("tokenbucket: invalid limit")

	// ErrInvalidKey is returned for a key that is empty or longer than 1,024 bytes.
	// Nothing was sent to the store.
	ErrInvalidKey = errors.New("tokenbucket: invalid key")

	// ErrInvalidCost is returned for a negative cost. Nothing was sent to the store.
	ErrInvalidCost = errors.New("tokenbucket: negative cost")

	// ErrClosed is returned by a Limiter that was closed, or whose store was shut down or closed: it
	// is store.ErrClosed.
	ErrClosed = store.ErrClosed

	// ErrCostExceedsBurst is matched by the *[CostError] of a cost that no waiting could ever make
	// affordable. Nothing was charged.
	ErrCostExceedsBurst = errors.New("tokenbucket: cost exceeds the burst")
)

// CostError says which limit can never afford a cost. It matches [ErrCostExceedsBurst].
type CostError struct {
	Limit string // name of the limit
	Cost  int64
	Burst int64
}

func (e *CostError) Error() string {
	return fmt.Sprintf("tokenbucket: a cost of %d exceeds the burst of %d of limit %q", e.Cost, e.Burst, e.Limit)
}

// Is reports whether target is [ErrCostExceedsBurst].
func (e *CostError) Is(target error) bool { return target == ErrCostExceedsBurst }
