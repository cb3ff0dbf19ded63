package semaphore

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrNotAcquired is matched by the error of a call that did not get a permit, because there was
	// no room or others were first. The error is a *[BusyError].
	ErrNotAcquired = errors.New("semaphore: not acquired")

	// ErrQueueFull is matched, besides [ErrNotAcquired], by the error of a call that would have had
	// to wait while the queue was full ([WithMaxWaiting]).
	ErrQueueFull = errors.New("semaphore: queue is full")

	// ErrReleased is the cause with which a permit's context ends when the permit is released, and
	// the error of a second release.
	ErrReleased = errors.New("semaphore: the permit was released, by Release or with its Semaphore or store")

	// ErrExpired is the cause with which a permit's context ends when the permit was not renewed in
	// time, or is not renewed by configuration ([WithoutRenewal], [WithMaxHold]).
	ErrExpired = errors.New("semaphore: the permit expired: renewals failed, or WithoutRenewal or WithMaxHold ended it")

	// ErrLost is the cause with which a permit's context ends when the store reports that it is no
	// longer held, and the error of a release that came too late: others may have held its room since.
	ErrLost = errors.New("semaphore: the permit was lost: others may have held its room since")

	// ErrInvalidKey is matched by the error of a call with a key that is empty or longer than 1,024
	// bytes, and with such a participant of a [Latch]. Nothing was sent to the store. The error of
	// [Semaphore.SetCapacities] also matches it for prefixes that it does not accept.
	ErrInvalidKey = errors.New("semaphore: invalid key")

	// ErrInvalidWeight is matched by the error of a call with a weight below 1 or above the
	// capacity, which could never be granted. Nothing was sent to the store; a request that was
	// waiting when the capacity was reduced ([Semaphore.SetCapacity]) was withdrawn.
	ErrInvalidWeight = errors.New("semaphore: invalid weight")

	// ErrInvalidCapacity is matched by the error of a capacity, or a latch's count, that is out of its
	// range, including a capacity that [WithCapacityFunc]'s function has returned.
	ErrInvalidCapacity = errors.New("semaphore: invalid capacity")

	// ErrClosed is returned by a Semaphore that was closed, or whose store was shut down or closed,
	// and is the cause with which the contexts of its permits end then: it is store.ErrClosed.
	ErrClosed = store.ErrClosed
)

// BusyError describes the use of a key, as far as the store reports it. It matches
// [ErrNotAcquired], [ErrQueueFull] if the queue was full, and, if the caller's context ended while
// it waited, the context's error and cause.
type BusyError struct {
	InUse    int // sum of the weights of all permits
	Capacity int // of the request
	Waiting  int // number of earlier waiters
	// Remaining is the time until the first of the permits expires, unless it is renewed.
	Remaining time.Duration

	full  bool
	cause error // why waiting ended
}

// Error returns a text without the key.
func (e *BusyError) Error() string {
	text := fmt.Sprintf("%v: %d of %d in use, %d waiting", ErrNotAcquired, e.InUse, e.Capacity, e.Waiting)
	switch {
	case e.cause != nil:
		return text + ": " + e.cause.Error()
	case e.full:
		return text + ": the queue is full"
	}
	return text
}

// Unwrap returns the errors that the error matches.
func (e *BusyError) Unwrap() []error {
	matches := []error{ErrNotAcquired}
	if e.full {
		matches = append(matches, ErrQueueFull)
	}
	if e.cause != nil {
		matches = append(matches, e.cause)
	}
	return matches
}
