package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrNotAcquired is matched by the error of a call that did not get the lock since others have
	// it. The error is a *[HeldError].
	ErrNotAcquired = errors.New("lock: not acquired")

	// ErrReleased is the cause with which a lease's context ends when the lease is released.
	ErrReleased = errors.New("lock: released")

	// ErrExpired is the cause with which a lease's context ends when the lease could not be renewed
	// in time, or when it was not to be renewed ([WithoutRenewal], [WithMaxHold]).
	ErrExpired = errors.New("lock: lease expired")

	// ErrLost is the cause with which a lease's context ends when the store says that the lock is no
	// longer held, and the error of a release that came too late: others may have had the lock
	// meanwhile.
	ErrLost = errors.New("lock: lost")

	// ErrDeadlock is returned for a lock that could never be had, since the context that asks for it
	// holds what it would have to wait for.
	ErrDeadlock = errors.New("lock: deadlock")

	// ErrInvalidKey is matched by the error of a call with a key that is empty or longer than 1,024
	// bytes. Nothing has been sent.
	ErrInvalidKey = errors.New("lock: invalid key")

	// ErrClosed is returned by a Locker that was closed, or whose store was shut down or closed: it is
	// store.ErrClosed.
	ErrClosed = store.ErrClosed

	// ErrNotSupported is matched by the error of an operation that the store cannot do, such as
	// shared locks on a core/quorum: it is store.ErrNotSupported.
	ErrNotSupported = store.ErrNotSupported
)

// HeldError says who has the lock, as far as the store can tell. It matches [ErrNotAcquired] and, if
// the caller's context ended while it waited, the context's error and cause.
type HeldError struct {
	Holder    string        // what the holder says of itself ([WithHolder]); may be empty
	Remaining time.Duration // until its lease expires, unless it is renewed
	Waiting   int           // requests that waited before this one

	cause error // why waiting ended
}

// Error says that the lock is held, and nothing of its key.
func (e *HeldError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%v: %v", ErrNotAcquired, e.cause)
	}
	return ErrNotAcquired.Error() + ": held by another"
}

// Unwrap returns what the error matches.
func (e *HeldError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrNotAcquired}
	}
	return []error{ErrNotAcquired, e.cause}
}
