package guard

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Once runs fn at most once for an operation. It returns nil if fn has succeeded, in this call or
// in an earlier one. It is for consumers of queues and receivers of webhooks, which receive some
// messages more than once; [Disposition] returns the action for the message.
//
// The key is the message's own ID, never one that the receiver makes: a message without an ID is
// [ErrInvalidOperation]. The retention ([WithRetention]) must be longer than the time for which the
// sender repeats a message: 72 h for most payment providers.
//
// If fn returns an error, Once returns it. The next delivery runs fn again if its effects are all
// in steps ([Step]), if the attempt is clean ([Attempt.MarkClean]), or if the guard was built
// [WithRerun]. Otherwise the outcome is unknown. The same holds for a panic, which propagates.
//
// fn's context is the attempt's: [FromContext] finds the attempt in it. Other errors are
// [Guard.Begin]'s, except *[NotRetainedError], which is a success. An error in recording fn's
// success is not returned: recording it is retried in the background.
func Once(ctx context.Context, g *Guard, op Operation, fn func(context.Context) error) error {
	attempt, _, err := g.Begin(ctx, op)
	switch {
	case errors.Is(err, ErrNotRetained):
		return nil
	case err != nil || attempt == nil:
		return err
	}
	return attempt.run(ctx, fn, func() error {
		_ = attempt.Complete(ctx, Result{})
		return nil
	})
}

// Action is the treatment of a message.
type Action int

// The actions.
const (
	// Acknowledge removes the message from its queue, and answers a webhook with 200.
	Acknowledge Action = iota + 1
	// RetryLater returns the message to its queue, and answers a webhook with 503, and with
	// Retry-After if there is a delay.
	RetryLater
	// DeadLetter moves the message to a dead-letter queue, for an operator, and then acknowledges it:
	// another delivery has the same outcome. Webhooks without such a place answer 500.
	DeadLetter
)

// String returns a name of the action, such as "retry later".
func (a Action) String() string {
	switch a {
	case Acknowledge:
		return "acknowledge"
	case RetryLater:
		return "retry later"
	case DeadLetter:
		return "dead letter"
	}
	return fmt.Sprintf("Action(%d)", int(a))
}

// Disposition returns the action for a message whose [Once] or [Do] has returned err. With
// RetryLater, after is the least delay, or zero for the queue's own.
//
//	err                                     action       after
//	nil: it ran, now or before              Acknowledge
//	ErrInFlight                             RetryLater   the rest of the other attempt's lease
//	ErrOutcomeUnknown                       DeadLetter
//	... and WithReconcile has failed        RetryLater
//	ErrMismatch: another message, same ID   DeadLetter
//	ErrInvalidOperation, such as no ID      DeadLetter
//	ErrNotRetained: it ran, the value of Do
//	is lost                                 DeadLetter
//	ErrEncoding: the same, or it never runs DeadLetter
//	ErrStep                                 DeadLetter
//	ErrScopeFull                            RetryLater   until a record of the scope expires
//	store.ErrUnavailable, the context's     RetryLater
//	fn's own                                RetryLater
//
// Only nil is acknowledged, so no message is lost. Queues count deliveries: the delay after
// ErrInFlight makes it one more delivery, not several, if the other attempt has died.
// Operation.Wait waits for the other attempt instead.
//
// An application that can classify an error of fn itself, such as a message that can never be
// handled, does so before it calls Disposition.
func Disposition(err error) (action Action, after time.Duration) {
	var (
		inFlight  *InFlightError
		unknown   *UnknownError
		scopeFull *ScopeFullError
	)
	switch {
	case err == nil:
		return Acknowledge, 0
	case errors.As(err, &inFlight):
		return RetryLater, inFlight.Remaining
	case errors.As(err, &scopeFull):
		return RetryLater, scopeFull.RetryAfter
	case errors.Is(err, ErrStep), errors.Is(err, ErrEncoding): // also of an unknown outcome
		return DeadLetter, 0
	case errors.As(err, &unknown) && unknown.Err != nil: // the next delivery reconciles it
		return RetryLater, 0
	case errors.Is(err, ErrOutcomeUnknown), errors.Is(err, ErrMismatch), errors.Is(err, ErrInvalidOperation), errors.Is(err, ErrNotRetained):
		return DeadLetter, 0
	}
	return RetryLater, 0
}
