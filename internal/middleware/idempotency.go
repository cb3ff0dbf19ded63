package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// Idempotency runs requests once, and answers repeats with what is kept.
type Idempotency struct {
	Guard          *guard.Guard
	RunUnprotected bool
}

// GuardedExchange is a request with a key, and its answer, in a protocol's hands.
type GuardedExchange interface {
	// Run has the handler make the attempt, whose context the request then has, and returns what
	// came of it.
	Run(ctx context.Context) Outcome
	// Replay answers with what is kept. An error says that it cannot be read, and nothing was
	// answered.
	Replay(*guard.Result) error
	// Bypass has the handler answer the request as if there were no middleware, and the answer say
	// so.
	Bypass()
	// Deny ends the exchange with a denial.
	Deny(policy.Denial)
	// Report tells of an error that does not change the answer.
	Report(error)
}

// Outcome is how a handler ended.
type Outcome struct {
	Ending Ending
	Status int
	// Data is the answer, nil if it could not be retained.
	Data []byte
}

// Ending says whether an outcome is for those who ask again, too.
type Ending int

// The endings of handlers.
const (
	Final   Ending = iota // it would be the same again
	Refused               // nothing was done, and it may be otherwise the next time
	Failed                // it may have had effects before it failed
)

// Serve answers a request with this context: it runs it, replays it or denies it.
func (m *Idempotency) Serve(request context.Context, op guard.Operation, x GuardedExchange) {
	// A client that leaves changes nothing: whether it is there for the answer or comes back for
	// it, the operation runs to its end.
	ctx, cancel := detach(request)
	defer cancel()
	attempt, result, err := m.Guard.Begin(ctx, op)
	switch {
	case err == nil && result != nil:
		if err := x.Replay(result); err != nil {
			x.Deny(policy.Denial{Reason: policy.ResponseNotRetained, OriginalStatus: result.Status, Err: err})
		}
	case err == nil:
		m.run(x, attempt)
	case errors.Is(err, outage.ErrUnavailable) && m.RunUnprotected:
		x.Report(err)
		x.Bypass()
	default:
		deny(request, x, guardDenial(err))
	}
}

// run has the handler make the attempt, and settles it.
func (m *Idempotency) run(x GuardedExchange, attempt *guard.Attempt) {
	noted, note := WithNote(attempt.Context())
	returned := false
	defer func() {
		if !returned { // the handler panicked, and goes on to do so
			m.report(x, m.settlePanic(noted, attempt))
		}
	}()
	outcome := x.Run(noted)
	returned = true
	switch {
	case note.Refused(), !m.keeps(outcome.Ending, attempt): // by a lock or a limit behind the guard, or by the handler
		m.report(x, attempt.Abandon(noted))
	case outcome.Data == nil:
		m.report(x, attempt.CompleteNotRetained(noted, outcome.Status))
	default:
		m.report(x, attempt.Complete(noted, guard.Result{Status: outcome.Status, Data: outcome.Data}))
	}
}

// settlePanic settles an attempt whose handler did not return.
func (m *Idempotency) settlePanic(ctx context.Context, attempt *guard.Attempt) error {
	if m.mayRerun(attempt) {
		return attempt.Abandon(ctx)
	}
	return attempt.CompleteUnknown(ctx)
}

func (m *Idempotency) mayRerun(attempt *guard.Attempt) bool {
	return m.Guard.MayRerun() || !attempt.Dirty()
}

func (m *Idempotency) keeps(e Ending, attempt *guard.Attempt) bool {
	return e == Final || e == Failed && !m.mayRerun(attempt)
}

// report tells of an answer that could not be recorded. It is sent all the same.
func (m *Idempotency) report(x GuardedExchange, err error) {
	if err != nil && !errors.Is(err, guard.ErrSettled) { // the handler may settle the attempt itself
		x.Report(err)
	}
}

// guardDenial says what a client is told of an error of Begin.
func guardDenial(err error) policy.Denial {
	var (
		inFlight    *guard.InFlightError
		notRetained *guard.NotRetainedError
	)
	switch {
	case errors.As(err, &inFlight):
		return policy.Denial{Reason: policy.InFlight, RetryAfter: max(inFlight.RetryAfter, time.Second)}
	case errors.As(err, &notRetained):
		return policy.Denial{Reason: policy.ResponseNotRetained, OriginalStatus: notRetained.Status}
	case errors.Is(err, guard.ErrMismatch):
		return policy.Denial{Reason: policy.KeyReused}
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return policy.Denial{Reason: policy.OutcomeUnknown}
	case errors.Is(err, guard.ErrInvalidOperation):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}
	}
	return unavailable(err)
}

// detach returns a context that the client's leaving does not end, but the request's own deadline
// does.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	detached := context.WithoutCancel(ctx)
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithDeadline(detached, deadline)
	}
	return detached, func() {}
}
