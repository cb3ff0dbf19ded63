package semaphore

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrNotAcquired is matched by the error of a call that did not get a permit since there was no
	// room for it, or since others were before it. The error is a *[BusyError].
	ErrNotAcquired = errors.New("semaphore: not acquired")

	// ErrQueueFull is matched, beside [ErrNotAcquired], by the error of a call that would have had to
	// wait, while as many waited as may ([WithMaxWaiting]).
	ErrQueueFull = errors.New("semaphore: queue is full")

	// ErrReleased is the cause with which a permit's context ends when the permit is released, and the
	// error of a second release.
	ErrReleased = errors.New("semaphore: released")

	// ErrExpired is the cause with which a permit's context ends when the permit could not be renewed
	// in time, or when it was not to be renewed ([WithoutRenewal], [WithMaxHold]).
	ErrExpired = errors.New("semaphore: permit expired")

	// ErrLost is the cause with which a permit's context ends when the store says that it is no longer
	// held, and the error of a release that came too late: others may have had its room meanwhile.
	ErrLost = errors.New("semaphore: permit lost")

	// ErrInvalidKey is matched by the error of a call with a key that is empty or longer than 1,024
	// bytes, and with such a participant of a [Latch]. Nothing has been sent.
	ErrInvalidKey = errors.New("semaphore: invalid key")

	// ErrInvalidWeight is matched by the error of a call that asks for less than one permit, or for
	// more than the capacity, so that it could never be granted. Nothing has been sent; what waited
	// when the capacity became smaller ([Semaphore.SetCapacity]) is withdrawn.
	ErrInvalidWeight = errors.New("semaphore: invalid weight")

	// ErrInvalidCapacity is matched by the error of a capacity, or a latch's count, that is out of its
	// range, and of a call whose [WithCapacityFunc] has answered one.
	ErrInvalidCapacity = errors.New("semaphore: invalid capacity")

	// ErrClosed is returned by a Semaphore that was closed, or whose store was shut down or closed: it is
	// store.ErrClosed.
	ErrClosed = store.ErrClosed
)

// BusyError says why there was no room, as far as the store can tell. It matches [ErrNotAcquired],
// [ErrQueueFull] if it was that, and, if the caller's context ended while it waited, the context's
// error and cause.
type BusyError struct {
	InUse    int // the weights of all permits
	Capacity int // that the request was sent with
	Waiting  int // requests that waited before this one
	// Remaining is how long it takes until the first of the permits expires, unless it is renewed.
	Remaining time.Duration

	full  bool
	cause error // why waiting ended
}

func busy(req store.PermitRequest, reply store.PermitReply, cause error) *BusyError {
	return &BusyError{
		InUse: reply.InUse, Capacity: req.Capacity, Waiting: reply.Waiting, Remaining: reply.Remaining,
		full: reply.Outcome == store.Taken && reply.QueueFull, cause: cause,
	}
}

// Error says how many are in use, and nothing of the key.
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

// Unwrap returns what the error matches.
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
