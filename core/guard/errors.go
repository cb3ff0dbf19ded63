package guard

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/kept"
	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrInFlight is matched by the *[InFlightError] of an operation that another attempt is
	// running.
	ErrInFlight = errors.New("guard: operation in flight")

	// ErrMismatch is returned for a key that was used before for a request with another
	// fingerprint.
	ErrMismatch = errors.New("guard: key reused for another request")

	// ErrOutcomeUnknown is matched by the *[UnknownError] of an operation whose earlier attempt ended
	// with an unknown outcome, and may have had effects. The guard does not run such an operation
	// again, unless it was built [WithRerun]; [WithReconcile] and [Guard.Resolve] find out the
	// outcome.
	ErrOutcomeUnknown = errors.New("guard: outcome of an earlier attempt unknown")

	// ErrNotRetained is matched by the *[NotRetainedError] of an operation that ran, and whose result
	// was not kept.
	ErrNotRetained = errors.New("guard: result not retained")

	// ErrScopeFull is matched by the *[ScopeFullError] of a new operation whose scope has its
	// maximum of records. The operation has not run.
	ErrScopeFull = errors.New("guard: scope full")

	// ErrInvalidOperation is returned for an operation without a key; for a scope or a key of more
	// than 1,024 bytes; for a retention, a wait or a maximum of waiters out of its range; and for an
	// invalid ID of an operation. Nothing was sent to the store.
	ErrInvalidOperation = errors.New("guard: invalid operation")

	// ErrNoRecord is returned by [Guard.Inspect] for an operation without a record.
	ErrNoRecord = errors.New("guard: no record of the operation")

	// ErrChanged is returned by [Guard.Resolve] if the record has changed since it was inspected.
	ErrChanged = errors.New("guard: the record has changed since it was inspected; inspect it again")

	// ErrOutcomeKnown is returned by [Guard.Resolve] for an operation that has a result.
	ErrOutcomeKnown = errors.New("guard: the outcome of the operation is known, so there is nothing to resolve")

	// ErrStep is returned by [Step] for a step that cannot be recorded or read, and matched by the
	// *[UnknownError] of an operation whose recorded steps cannot be read.
	ErrStep = errors.New("guard: invalid step")

	// ErrEncoding is matched by the errors of [Do], [Step] and pgstore.Do for a value whose JSON
	// decodes to another value, which a repeat would get. The errors describe the state of the
	// operation.
	ErrEncoding = kept.ErrEncoding

	// ErrClosed is returned by a Guard that was closed, or whose store was shut down or closed: it
	// is store.ErrClosed.
	ErrClosed = store.ErrClosed

	// ErrLost is returned if the attempt no longer owns its operation: its lease expired and
	// another attempt took over, or the record was removed. It is also the cause with which the
	// attempt's context ends.
	ErrLost = errors.New("guard: the attempt was lost: another one has taken over, or the record was removed")

	// ErrExpired is the cause with which the context of an attempt ends if its lease was not
	// renewed in time: another attempt may take over.
	ErrExpired = errors.New("guard: the attempt's lease expired: it was not renewed in time")

	// ErrSettled is returned by the methods of an attempt that was completed or abandoned before,
	// and is the cause with which its context ends.
	ErrSettled = errors.New("guard: the attempt was completed or abandoned before")
)

// InFlightError describes the lease of the attempt in flight. It matches [ErrInFlight].
type InFlightError struct {
	// ID is the operation's: see [Guard.InspectID].
	ID string
	// Remaining is the rest of the other attempt's lease, which it renews while it is alive.
	Remaining time.Duration
	// RetryAfter is the delay before a retry: the recent average duration of this guard's attempts, at
	// most Remaining.
	RetryAfter time.Duration
}

func (e *InFlightError) Error() string {
	return fmt.Sprintf("%v: its lease has %v left", ErrInFlight, e.Remaining)
}

// Is reports whether target is [ErrInFlight].
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// UnknownError names an operation whose outcome is unknown. It matches [ErrOutcomeUnknown].
type UnknownError struct {
	// ID is the operation's: see [Guard.InspectID].
	ID string
	// Err is the reason, or nil: [WithReconcile] has not found the outcome, or a step that an earlier
	// attempt recorded cannot be read.
	Err error
}

func (e *UnknownError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%v: operation %s: %v", ErrOutcomeUnknown, e.ID, e.Err)
	}
	return fmt.Sprintf("%v: operation %s", ErrOutcomeUnknown, e.ID)
}

// Is reports whether target is [ErrOutcomeUnknown].
func (e *UnknownError) Is(target error) bool { return target == ErrOutcomeUnknown }

// Unwrap returns Err.
func (e *UnknownError) Unwrap() error { return e.Err }

// NotRetainedError has the status of a result that was not kept. It matches [ErrNotRetained].
type NotRetainedError struct {
	Status int // of [Attempt.CompleteNotRetained], or the result's Status
}

func (e *NotRetainedError) Error() string {
	return fmt.Sprintf("%v: its status was %d", ErrNotRetained, e.Status)
}

// Is reports whether target is [ErrNotRetained].
func (e *NotRetainedError) Is(target error) bool { return target == ErrNotRetained }

// ScopeFullError has the time until a scope has room again. It matches [ErrScopeFull].
type ScopeFullError struct {
	// Guard is the name of the guard with the limit.
	Guard string
	// RetryAfter is the time until the store expects a free place in the scope; zero if unknown. That
	// is when the scope's first record expires, or up to a sixteenth of the retention later, since
	// Redis and PostgreSQL count records by such slices of time. An attempt that is abandoned frees a
	// place earlier.
	RetryAfter time.Duration
}

func (e *ScopeFullError) Error() string {
	return fmt.Sprintf("%v: guard %s; a record expires in %v", ErrScopeFull, e.Guard, e.RetryAfter)
}

// Is reports whether target is [ErrScopeFull].
func (e *ScopeFullError) Is(target error) bool { return target == ErrScopeFull }
