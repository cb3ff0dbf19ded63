package delay

import (
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

var (
	// ErrInvalidKey is matched by the error of a key that is empty or longer than 1,024 bytes.
	// Nothing was sent to the store.
	ErrInvalidKey = errors.New("delay: invalid key")

	// ErrInvalidPayload is matched by the error of a payload above the maximum ([WithMaxPayload]).
	// Nothing was sent to the store.
	ErrInvalidPayload = errors.New("delay: invalid payload")

	// ErrInvalidDelay is matched by the error of a delay that is negative or above 366 days.
	// Nothing was sent to the store.
	ErrInvalidDelay = errors.New("delay: invalid delay")

	// ErrFull is matched by the error of a put into a queue that has its maximum of tasks
	// ([WithMaxTasks]). Existing tasks are as before.
	ErrFull = errors.New("delay: the queue is full")

	// ErrNoTask is returned by [Queue.Inspect] and [Queue.Revive] for a key without a task.
	ErrNoTask = errors.New("delay: the key has no task")

	// ErrLost is returned by the methods that settle a task if its lease had ended, so that another
	// worker may have it, or it is gone. Nothing was changed. It is also the cause with which the
	// task's context ends when the store reports that.
	ErrLost = errors.New("delay: the task was lost: its lease had ended")

	// ErrExpired is the cause with which a task's context ends if its lease was not renewed in
	// time.
	ErrExpired = errors.New("delay: the task's lease expired: it was not renewed in time")

	// ErrSettled is returned by the methods of a task that was settled before, and is the cause
	// with which its context ends.
	ErrSettled = errors.New("delay: the task was settled before")

	// ErrClosed is returned by a Queue that was closed, or whose store was shut down or closed: it
	// is store.ErrClosed. It is also the cause with which the contexts of running tasks end then.
	ErrClosed = store.ErrClosed
)

// againError is the error of [Again].
type againError struct{ after time.Duration }

func (e *againError) Error() string { return "delay: the task is to run again in " + e.after.String() }

// Again returns an error with which the function of [Queue.Run] makes its task due again after a
// time: it is not a failure, so that the attempt does not count, and no back-off applies. An error
// that wraps it does the same. A time below zero counts as zero, and one above 366 days as 366
// days.
func Again(after time.Duration) error { return &againError{min(max(after, 0), store.MaxTaskDelay)} }

// buryError is the error of [Bury].
type buryError struct{ err error }

func (e *buryError) Error() string { return "delay: the task is to be buried: " + e.err.Error() }
func (e *buryError) Unwrap() error { return e.err }

// Bury returns an error with which the function of [Queue.Run] buries its task, with the text of
// err as the reason ("no reason" if err is nil): another attempt would fail as well. An error that
// wraps it does the same.
func Bury(err error) error {
	if err == nil {
		err = errors.New("no reason")
	}
	return &buryError{err}
}
