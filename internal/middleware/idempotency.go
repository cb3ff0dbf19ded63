package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/client"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Idempotency runs requests once, and answers repeats with the kept answer.
type Idempotency struct {
	*Watch
	Guard  *guard.Guard
	order  *order
	maxRun time.Duration
}

// NewIdempotency returns the decisions of a guard. It panics, as idempotency.New, if that is nil.
func NewIdempotency(g *guard.Guard, s setting.Settings) Idempotency {
	if g == nil {
		panic("idempotency: New: nil guard")
	}
	return Idempotency{newWatch(s, "idempotency", g.Name()), g, new(order), s.MaxRun}
}

// GuardedExchange is a request with a key, and its answer, in a protocol's hands.
type GuardedExchange interface {
	// Mark returns the exchange's mark, with the request's ID.
	Mark() *Mark
	// Run calls the handler with the attempt's context, and returns its outcome.
	Run(ctx context.Context) Outcome
	// Replay answers with the kept answer. An error means that it cannot be read, and nothing was
	// answered.
	Replay(*guard.Result) error
	// Bypass calls the handler as if there were no middleware, and marks the answer as bypassed.
	Bypass()
	// Deny ends the exchange with a denial.
	Deny(policy.Denial)
	// Unconfirmed is called before the answer that Run made is sent, if the store did not confirm
	// that it is recorded.
	Unconfirmed()
	// Report reports an error that does not change the answer.
	Report(error)
}

// Outcome is how a handler ended.
type Outcome struct {
	Ending Ending
	Status int
	// Data is the answer, nil if it could not be retained.
	Data []byte
}

// Ending is whether a repeat gets the same answer. The table is in docs/idempotency.md.
type Ending int

// The endings of handlers.
const (
	Final   Ending = iota // the answer is kept
	Refused               // the answer says that nothing was done: it is released
	Failed                // it may be another the next time: it is released if the attempt had no effects
)

// Serve answers a request with this context: it runs it, replays it or denies it.
func (m *Idempotency) Serve(request context.Context, op guard.Operation, x GuardedExchange) {
	if d := m.check(request, op, x.Mark()); d != nil {
		deny(request, x, *d)
		return
	}
	// A client that leaves changes nothing: whether it is there for the answer or comes back for
	// it, the operation runs to its end.
	ctx, release := client.Detach(request)
	defer release()
	attempt, result, err := m.Guard.Begin(ctx, op)
	if err == nil {
		m.Decided(ctx)
	}
	switch {
	case err == nil && result != nil:
		if err := x.Replay(result); err != nil {
			x.Deny(policy.Denial{Reason: policy.ResponseNotRetained, OriginalStatus: result.Status, Err: err})
		}
	case err == nil:
		m.run(x, op, attempt)
	case !errors.Is(err, store.ErrClosed) && m.Passes(ctx, err): // the process ends: that is no outage
		x.Report(err)
		x.Bypass()
	default:
		deny(request, x, guardDenial(err))
	}
}

// run calls the handler, and settles the attempt.
func (m *Idempotency) run(x GuardedExchange, op guard.Operation, attempt *guard.Attempt) {
	ctx, cancel := context.WithTimeoutCause(attempt.Context(), m.maxRun, policy.ErrMaxRun)
	defer cancel()
	noted := WithNote(x.Mark().in(ctx, m.Guard, op))
	returned := false
	defer func() {
		if !returned { // the handler is panicking
			m.report(x, m.settlePanic(noted, attempt))
		}
	}()
	outcome := x.Run(noted)
	returned = true
	switch {
	case !m.keeps(outcome.Ending, attempt):
		m.report(x, attempt.Abandon(noted))
	case outcome.Data == nil:
		m.completed(x, attempt.CompleteNotRetained(noted, outcome.Status))
	default:
		m.completed(x, attempt.Complete(noted, guard.Result{Status: outcome.Status, Data: outcome.Data}))
	}
}

func (m *Idempotency) completed(x GuardedExchange, err error) {
	if err != nil && !errors.Is(err, guard.ErrSettled) {
		x.Unconfirmed()
	}
	m.report(x, err)
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

// report reports an answer that could not be recorded. It is sent all the same.
func (m *Idempotency) report(x GuardedExchange, err error) {
	if err != nil && !errors.Is(err, guard.ErrSettled) { // the handler may settle the attempt itself
		x.Report(err)
	}
}

// guardDenial returns the denial for an error of Begin.
func guardDenial(err error) policy.Denial {
	var (
		inFlight    *guard.InFlightError
		notRetained *guard.NotRetainedError
		scopeFull   *guard.ScopeFullError
	)
	switch {
	case errors.As(err, &inFlight):
		return policy.Denial{Reason: policy.InFlight, RetryAfter: max(inFlight.RetryAfter, time.Second)}
	case errors.As(err, &notRetained):
		return policy.Denial{Reason: policy.ResponseNotRetained, OriginalStatus: notRetained.Status}
	case errors.As(err, &scopeFull):
		return policy.Denial{
			Reason: policy.QuotaExceeded, RetryAfter: max(scopeFull.RetryAfter, time.Second), ViolatedPolicies: []string{scopeFull.Guard},
		}
	case errors.Is(err, guard.ErrMismatch):
		return policy.Denial{Reason: policy.KeyReused}
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return policy.Denial{Reason: policy.OutcomeUnknown}
	case errors.Is(err, guard.ErrInvalidOperation):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}
	}
	return unavailable(err)
}
