package lock

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrNotAcquired is matched by the *[HeldError] of a call that did not get the lock because
	// others hold it.
	ErrNotAcquired = errors.New("lock: not acquired")

	// ErrReleased is the cause with which a lease's context ends when the lease is released.
	ErrReleased = errors.New("lock: the lease was released, by Unlock or with its Locker or store")

	// ErrExpired is the cause with which a lease's context ends when the lease was not renewed in
	// time, or is not renewed by configuration ([WithoutRenewal], [WithMaxHold]).
	ErrExpired = errors.New("lock: the lease expired: renewals failed, or WithoutRenewal or WithMaxHold ended it")

	// ErrLost is the cause with which a lease's context ends when the store reports that the lock is
	// no longer held, and the error of a release that came too late: others may have held the lock
	// since.
	ErrLost = errors.New("lock: the lease was lost: others may have held the lock since")

	// ErrDeadlock is returned if the call could never succeed, since its context holds the lock
	// that it would wait for.
	ErrDeadlock = errors.New("lock: deadlock: the context holds a lock that must be released first")

	// ErrInvalidKey is matched by the error of a call with a key that is empty or longer than 1,024
	// bytes. Nothing was sent to the store.
	ErrInvalidKey = errors.New("lock: invalid key")

	// ErrClosed is returned by a Locker that was closed, or whose store was shut down or closed,
	// and is the cause with which the contexts of its leases end then: it is store.ErrClosed.
	ErrClosed = store.ErrClosed

	// ErrNotSupported is matched by the error of an operation that the store does not support, such
	// as shared locks on a core/quorum: it is store.ErrNotSupported.
	ErrNotSupported = store.ErrNotSupported
)

// HeldError describes the holder of the lock, as far as the store reports it. It matches
// [ErrNotAcquired] and, if the caller's context ended while it waited, the context's error and
// cause.
type HeldError struct {
	Holder    string        // the label of the holder ([WithHolder]); may be empty
	Remaining time.Duration // until its lease expires, unless it is renewed
	Waiting   int           // number of earlier waiters

	cause error // why waiting ended
}

// Error returns a text without the key.
func (e *HeldError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("%v: %v", ErrNotAcquired, e.cause)
	}
	return ErrNotAcquired.Error() + ": held by another"
}

// Unwrap returns the errors that the error matches.
func (e *HeldError) Unwrap() []error {
	if e.cause == nil {
		return []error{ErrNotAcquired}
	}
	return []error{ErrNotAcquired, e.cause}
}
