package guard

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrInFlight is matched by the *[InFlightError] of an operation that another attempt is
	// running now.
	ErrInFlight = errors.New("guard: operation in flight")

	// ErrMismatch says that the key was used before for a request with another fingerprint.
	ErrMismatch = errors.New("guard: key reused for another request")

	// ErrOutcomeUnknown says that an earlier attempt ended without telling how, and may have had
	// effects. The guard does not run such an operation again, unless it was built [WithRerun].
	ErrOutcomeUnknown = errors.New("guard: outcome of an earlier attempt unknown")

	// ErrNotRetained is matched by the *[NotRetainedError] of an operation that ran, and whose
	// result was not kept.
	ErrNotRetained = errors.New("guard: result not retained")

	// ErrScopeFull is matched by the *[ScopeFullError] of a new operation whose scope has as many
	// records as it may have. The operation has not run.
	ErrScopeFull = errors.New("guard: scope full")

	// ErrInvalidOperation is returned for an operation without a key, or with a scope or a key of
	// more than 1,024 bytes. Nothing was sent to the store.
	ErrInvalidOperation = errors.New("guard: invalid operation")

	// ErrLost says that the attempt does not own its operation any more: its lease ran out and
	// another attempt took over, or the record was removed. It is the cause of a context's end,
	// too.
	ErrLost = errors.New("guard: attempt lost")

	// ErrExpired is the cause of the end of the context of an attempt whose lease could not be
	// renewed in time: another attempt may take over.
	ErrExpired = errors.New("guard: attempt's lease expired")

	// ErrSettled is returned by the methods of an attempt that was completed or abandoned before,
	// and is the cause of the end of its context.
	ErrSettled = errors.New("guard: attempt already settled")
)

// InFlightError says for how long another attempt holds the operation. It matches [ErrInFlight].
type InFlightError struct {
	// Remaining is what is left of the other attempt's lease. An attempt that is alive renews it.
	Remaining time.Duration
	// RetryAfter is when to ask again: what attempts of this guard have lately taken, but no more
	// than Remaining.
	RetryAfter time.Duration
}

func (e *InFlightError) Error() string {
	return fmt.Sprintf("%v: its lease has %v left", ErrInFlight, e.Remaining)
}

// Is reports whether target is [ErrInFlight].
func (e *InFlightError) Is(target error) bool { return target == ErrInFlight }

// NotRetainedError says what is known of a result that was not kept. It matches [ErrNotRetained].
type NotRetainedError struct {
	Status int // what was passed to [Attempt.CompleteNotRetained], or the result's Status
}

func (e *NotRetainedError) Error() string {
	return fmt.Sprintf("%v: its status was %d", ErrNotRetained, e.Status)
}

// Is reports whether target is [ErrNotRetained].
func (e *NotRetainedError) Is(target error) bool { return target == ErrNotRetained }

// ScopeFullError says when a scope has room again. It matches [ErrScopeFull].
type ScopeFullError struct {
	// Guard is the name of the guard whose bound it is.
	Guard string
	// RetryAfter is when the first of the scope's records ends; zero if that is not known.
	RetryAfter time.Duration
}

func (e *ScopeFullError) Error() string {
	return fmt.Sprintf("%v: of guard %s; a record ends in %v", ErrScopeFull, e.Guard, e.RetryAfter)
}

// Is reports whether target is [ErrScopeFull].
func (e *ScopeFullError) Is(target error) bool { return target == ErrScopeFull }
