package middleware

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/clientctx"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Idempotency runs requests once, and answers repeats with the kept answer.
type Idempotency struct {
	*Watch
	Guard      *guard.Guard
	order      *order
	maxRun     time.Duration
	kept       time.Duration // retention of records; zero for the guard's
	wait       time.Duration // for the answer to the request's twin; zero refuses at once
	maxWaiting int
	window     time.Duration // of requests without a key; zero does not guard them
}

// NewIdempotency returns the decisions of a guard. It panics, as idempotency.New, if that is nil,
// or if the settings contradict each other.
func NewIdempotency(g *guard.Guard, s setting.Settings) Idempotency {
	switch {
	case g == nil:
		panic("idempotency: New: nil guard")
	case s.Retention != 0 && s.Retention < g.TTL():
		panic(fmt.Sprintf("idempotency: New: policy.Retention (%v) is less than the lease of the guard (%v)", s.Retention, g.TTL()))
	case s.MaxWaiting > 0 && s.Wait == 0 && s.Dedupe == 0:
		panic("idempotency: New: policy.MaxWaiting has no effect without policy.Wait or policy.Dedupe")
	case s.Dedupe > 0 && s.Required:
		panic("idempotency: New: policy.Dedupe has no effect with policy.Required")
	case s.Dedupe > 0 && s.KeyAlone:
		panic("idempotency: New: policy.Dedupe with policy.KeyAlone makes all requests to a path one")
	}
	return Idempotency{
		Watch: newWatch(s, "idempotency", g.Name()), Guard: g, order: new(order), maxRun: s.MaxRun, kept: s.Retention,
		wait: s.Wait, maxWaiting: s.MaxWaiting, window: s.Dedupe,
	}
}

// dedupeWait is how long a request without a key waits for its twin if there is no policy.Wait. A
// refusal would be an error page for a second click whose first one succeeds.
const dedupeWait = 10 * time.Second

// withoutKey begins the key of an operation whose request has none. No client's key begins with it
// ([CheckIdempotencyKey]).
const withoutKey = "\x00dedupe "

// Guards reports whether a request with this key is guarded.
func (m *Idempotency) Guards(key string) bool { return key != "" || m.window > 0 }

// Operation returns the operation of a guarded request, by its key or, if that is empty, by its
// fingerprint.
func (m *Idempotency) Operation(scope, key string, fingerprint []byte) guard.Operation {
	op := guard.Operation{Scope: scope, Key: key, Fingerprint: fingerprint, Wait: m.wait, MaxWaiting: m.maxWaiting}
	if key == "" {
		sum := sha256.Sum256(fingerprint)
		op.Key = withoutKey + base64.RawURLEncoding.EncodeToString(sum[:])
		op.Wait = cmp.Or(m.wait, dedupeWait)
		op.Retention = max(m.window, m.Guard.TTL()) // in case the process dies
	}
	return op
}

// GuardedExchange is a guarded request and its answer, as a protocol implements them.
type GuardedExchange interface {
	// Mark returns the exchange's mark, with the request's ID.
	Mark() *Mark
	// Run calls the handler with the attempt's context, and returns its outcome.
	Run(ctx context.Context) Outcome
	// Replay answers with the kept answer. An error means that the answer cannot be read, and that
	// nothing was sent.
	Replay(*guard.Result) error
	// Bypass calls the handler as if there were no middleware, and marks the answer as bypassed.
	Bypass()
	// Deny ends the exchange with a denial.
	Deny(policy.Denial)
	// GiveUp answers for a handler that did not before its context ended: its outcome is not known.
	GiveUp(policy.Denial)
	// Unconfirmed is called before the answer of Run is sent, if the store did not confirm its record.
	Unconfirmed()
	// Report reports an error that does not change the answer.
	Report(error)
}

// Outcome is the outcome of a handler.
type Outcome struct {
	Ending Ending
	Status int
	// Data is the answer, nil if it could not be retained.
	Data []byte
}

// Ending decides whether a repeat gets the same answer. The table is in docs/idempotency.md.
type Ending int

// The endings of handlers.
const (
	Final   Ending = iota // the answer is kept
	Refused               // the answer says that nothing was done: it is released
	Failed                // the next attempt may end otherwise: it is released if this one had no effects
	Silent                // there is no answer: that counts as one unless the handler's context has ended
	Outside               // middleware outside the guard makes an answer, which is not known here
)

// Serve answers a request with this context: it runs it, replays it or denies it.
func (m *Idempotency) Serve(request context.Context, op guard.Operation, x GuardedExchange) {
	op.Retention = cmp.Or(op.Retention, m.kept)
	if d := m.check(request, op, x.Mark()); d != nil {
		deny(request, x, *d)
		return
	}
	// A client that leaves changes nothing once the handler runs: the operation runs to its end, and
	// the client may come back for the answer. It only ends the wait for a twin.
	ctx, release := clientctx.Detach(request)
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
		m.run(request, x, op, attempt)
	case !errors.Is(err, store.ErrClosed) && m.Passes(ctx, err): // the process ends, which is no outage
		x.Report(err)
		x.Bypass()
	default:
		deny(request, x, guardDenial(err))
	}
}

// run calls the handler, and settles the attempt.
func (m *Idempotency) run(request context.Context, x GuardedExchange, op guard.Operation, attempt *guard.Attempt) {
	ctx, cancel := context.WithTimeoutCause(attempt.Context(), m.maxRun, policy.ErrMaxRun)
	defer cancel()
	if strings.HasPrefix(op.Key, withoutKey) {
		attempt.Keep(m.window)
	}
	mark := x.Mark()
	noted := WithNote(mark.in(ctx, m.Guard, op))
	returned := false
	defer func() {
		if !returned { // the handler is panicking
			m.report(x, settlePanic(noted, attempt))
		}
	}()
	outcome := x.Run(noted)
	returned = true
	switch {
	case outcome.Ending == Silent && (Over(noted) || request.Err() != nil):
		m.report(x, settlePanic(noted, attempt)) // it has given up silently
		giveUp(request, mark.ID, x, cmp.Or(context.Cause(noted), context.Cause(request), errEnded))
	case outcome.Ending == Outside:
		m.AnsweredOutside(noted)
		m.completed(x, attempt.CompleteNotRetained(noted, 0))
	case !keeps(outcome.Ending, attempt):
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
func settlePanic(ctx context.Context, attempt *guard.Attempt) error {
	if attempt.MayRerun() {
		return attempt.Abandon(ctx)
	}
	return attempt.CompleteUnknown(ctx)
}

func keeps(e Ending, attempt *guard.Attempt) bool {
	return e != Refused && (e != Failed || !attempt.MayRerun())
}

// report reports the error of an answer that could not be recorded. The answer is sent all the
// same.
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
		unknown     *guard.UnknownError
	)
	switch {
	case errors.As(err, &inFlight):
		return policy.Denial{Reason: policy.InFlight, RetryAfter: max(inFlight.RetryAfter, time.Second), Operation: inFlight.ID}
	case errors.As(err, &notRetained):
		return policy.Denial{Reason: policy.ResponseNotRetained, OriginalStatus: notRetained.Status}
	case errors.As(err, &scopeFull):
		return policy.Denial{
			Reason: policy.KeyQuotaExceeded, RetryAfter: max(scopeFull.RetryAfter, time.Second), ViolatedPolicies: []string{scopeFull.Guard},
		}
	case errors.Is(err, guard.ErrMismatch):
		return policy.Denial{Reason: policy.KeyReused}
	case errors.As(err, &unknown):
		return policy.Denial{Reason: policy.OutcomeUnknown, Operation: unknown.ID, Err: unknown.Err}
	case errors.Is(err, guard.ErrInvalidOperation):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}
	}
	return unavailable(err)
}
