package tokenbucket

import (
	"errors"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrInvalidLimit is matched by the errors of [New], [Limiter.SetPlan] and [ParseLimit] for a
	// limit or a plan that cannot be kept. The text names the part that is wrong, and the reason.
	ErrInvalidLimit = errors.New("tokenbucket: invalid limit")

	// ErrInvalidEnforcement is matched by the errors of [Limiter.SetEnforcement] and
	// [Mode.UnmarshalText] for a mode or a share that does not exist.
	ErrInvalidEnforcement = errors.New("tokenbucket: invalid enforcement")

	// ErrInvalidKey is matched by the error of a key that is empty or longer than 1,024 bytes.
	// Nothing was sent to the store.
	ErrInvalidKey = errors.New("tokenbucket: invalid key")

	// ErrInvalidCost is matched by the error of a negative cost, and by that of AllowAtMost for less
	// than one token. Nothing was sent to the store.
	ErrInvalidCost = errors.New("tokenbucket: invalid cost")

	// ErrUnknownUnit is matched by the error of a cost in a unit that no limit of the key counts.
	// Nothing was sent to the store.
	ErrUnknownUnit = errors.New("tokenbucket: no limit counts this unit")

	// ErrSettled is returned by [Reservation.Use] after Settle or Cancel, and after a denial.
	ErrSettled = errors.New("tokenbucket: the reservation is settled, or was denied")

	// ErrOverdraft is returned by [Reservation.Settle] if more was used than the bucket's overdraft
	// allows. The bucket is overdrawn as far as it may be; the rest is not charged.
	ErrOverdraft = errors.New("tokenbucket: more was used than the overdraft allows; the rest is not charged")

	// ErrInvalidHold is matched by the error of a hold that is too short or too long. Nothing was
	// sent to the store.
	ErrInvalidHold = errors.New("tokenbucket: invalid time to hold a key")

	// ErrNoLimits is returned for the hold of a key whose plan is [Unlimited], or whose limits are not
	// enforced ([Limiter.SetEnforcement]).
	ErrNoLimits = errors.New("tokenbucket: a key without enforced limits cannot be held")

	// ErrClosed is returned by a Limiter after Close, and after its store was shut down or closed. It
	// is store.ErrClosed.
	ErrClosed = store.ErrClosed

	// ErrCostExceedsBurst is matched by the *[CostError] of a cost that no waiting could ever make
	// affordable. Nothing was charged.
	ErrCostExceedsBurst = errors.New("tokenbucket: cost exceeds the burst")
)

// invalidCost returns the error of a call with n tokens.
func invalidCost(call string, n, least int64) error {
	return fmt.Errorf("%w: %s of %d tokens, where %d is the least", ErrInvalidCost, call, n, least)
}

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
