// Package history is what a fleet of processes has done: the events that its workers write, and the
// calls, holds, charges and operations that follow from them.
//
// All times are nanoseconds of CLOCK_MONOTONIC, which is the same for all processes of a machine and
// cannot be set.
package history

import (
	"encoding/json"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time of the machine's monotonic clock.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // there is no machine without it
	}
	return ts.Nano()
}

// At returns that clock's time at t. If the process is paused during the call, it returns an earlier
// time, never a later one.
func At(t time.Time) int64 {
	now := Now()
	return now + int64(time.Until(t))
}

// Step is what an event says.
type Step string

// The steps of a call. Those of locks and semaphores are also those of attempts at operations.
const (
	// Called begins a call, whose events all have its number.
	Called Step = "call"
	// Granted says that the call has returned a hold, and that it was valid then.
	Granted Step = "grant"
	// Late says that the call has returned a hold that was not valid any more.
	Late Step = "late"
	// Failed says that the call has returned an error, or that a hold does not exist; Text is its
	// class.
	Failed Step = "fail"
	// Valid says that the hold was valid then.
	Valid Step = "valid"
	// Releasing comes before the release of a hold that was valid then.
	Releasing Step = "release"
	// Ended says that the hold's context has ended.
	Ended Step = "end"
	// Wrote says that a holder has written with its fence, valid or not.
	Wrote Step = "write"

	// Allowed is a charge of N tokens that was called at Until.
	Allowed Step = "allow"
	// Denied is a charge that was denied.
	Denied Step = "deny"
	// Holding is a hold of a bucket's key for N nanoseconds that was called at Until.
	Holding Step = "hold"

	// Effect is an effect of an attempt at an operation.
	Effect Step = "effect"
	// Completing comes before the completion of an attempt with the result Text, and Completed
	// after one that the store has confirmed.
	Completing Step = "completing"
	Completed  Step = "complete"
	// Replayed says that the call has returned the result Text.
	Replayed Step = "replay"

	// Committed is an effect of an operation or a task that was found in the database after the run:
	// its key and its Text.
	Committed Step = "commit"

	// Putting begins the put of the task Task, which is due N nanoseconds later.
	Putting Step = "put"
	// Cancelling begins a cancel of a key's task.
	Cancelling Step = "cancel"
	// Answered says that a put or a cancel has returned with the outcome Text.
	Answered Step = "answer"
	// Recorded says that an operation with an effect of the task Text is recorded as done.
	Recorded Step = "record"
	// Buried is a buried task of a key that was found in the store after the run.
	Buried Step = "buried"

	// Wrong is what a worker itself has found to be wrong.
	Wrong Step = "wrong"
)

// RolledBack is the Text of the answer to a put whose transaction was rolled back.
const RolledBack = "rolled back"

// Event is a line of a worker's history.
type Event struct {
	At      int64  `json:"t"`
	Step    Step   `json:"s"`
	Call    int64  `json:"c,omitempty"` // its number among the calls of the worker
	Subject string `json:"m,omitempty"` // what is called, of Called, Allowed, Denied and Holding
	Key     string `json:"k,omitempty"`
	N       int64  `json:"n,omitempty"` // a weight, a reserve of it, a fence, a number of tokens
	Reserve int64  `json:"r,omitempty"`
	// Until is the end of a valid hold, unless it is renewed. Of Wrote, Effect and Completing it
	// only says that the hold was valid then.
	Until int64  `json:"u,omitempty"`
	Text  string `json:"x,omitempty"`
	Task  string `json:"i,omitempty"` // of Putting, and of Called: the task that is put, or run
	Waits bool   `json:"w,omitempty"` // of Called: the call waits for its turn
}

// Writer writes events, each at once and as a whole, so that a killed process leaves no half of
// one.
type Writer struct {
	mu   sync.Mutex
	out  io.Writer
	last int64
}

// NewWriter returns a writer to a pipe or a file.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Next returns the number of a new call.
func (w *Writer) Next() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	return w.last
}

// Write writes an event. Its time is now, unless it has one.
func (w *Writer) Write(e Event) {
	if e.At == 0 {
		e.At = Now()
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // there is nothing in it that JSON has no text for
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(append(line, '\n')) // the reader has gone: the process ends soon
}
