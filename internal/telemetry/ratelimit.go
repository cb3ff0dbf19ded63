package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const rateLimitResultKey = attribute.Key("lockkeeper.rate_limit.result")

// RateLimitResult is the result of a decision.
type RateLimitResult string

// The results of a limiter.
const (
	RateLimitAcquired RateLimitResult = "acquired"
	RateLimitDenied   RateLimitResult = "denied"
	RateLimitError    RateLimitResult = "error"
	RateLimitCanceled RateLimitResult = "canceled" // on spans only: the caller stopped waiting
)

// RateLimit is the telemetry of a limiter.
type RateLimit struct {
	policy    attribute.KeyValue
	decisions *Durations[RateLimitResult]
	tracer    trace.Tracer
	name      string // of spans
}

// NewRateLimit returns the telemetry of the limiter with this name.
func NewRateLimit(p Providers, scope, policy string) *RateLimit {
	t := &RateLimit{policy: policyKey.String(policy), tracer: p.tracer(scope), name: "acquire " + policy}
	t.decisions = newDurations(p, durationsSpec[RateLimitResult]{
		scope: scope, name: "lockkeeper.rate_limit.decision.duration", description: "How long limiters take to decide.",
		bounds: StoreBounds, attributes: []attribute.KeyValue{t.policy}, key: rateLimitResultKey,
		ends: []RateLimitResult{RateLimitAcquired, RateLimitDenied, RateLimitError}, failed: RateLimitError,
	})
	return t
}

// Begin is called before a decision, and End after it with what it returned.
func (t *RateLimit) Begin(ctx context.Context) time.Time { return t.decisions.Begin(ctx) }

// End records a decision, and annotates the current span if it is recording. It does not set the
// span's status: a denial is no error, and a failure may not be one for the request.
func (t *RateLimit) End(ctx context.Context, began time.Time, result RateLimitResult, err error) {
	t.decisions.End(ctx, began, result, err)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(t.policy, rateLimitResultKey.String(string(result)))
	}
}

// Waiting is a caller that waits for tokens.
type Waiting struct{ span trace.Span } // may be nil

// Wait is called before a wait for tokens, which has a span if the current one is recording, and
// End after it.
func (t *RateLimit) Wait(ctx context.Context) (w Waiting) {
	if trace.SpanFromContext(ctx).IsRecording() {
		_, w.span = t.tracer.Start(ctx, t.name, trace.WithAttributes(t.policy)) //nolint:spancheck // End ends it
	}
	return w
}

// End ends the span with the result of the wait: if the tokens would come after the context's
// deadline, that is a denial and no error.
func (w Waiting) End(ctx context.Context, err error) {
	if w.span == nil {
		return
	}
	result := RateLimitError
	switch {
	case err == nil:
		result = RateLimitAcquired
	case ctx.Err() != nil:
		result = RateLimitCanceled
	case errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, store.ErrUnavailable):
		result = RateLimitDenied
	}
	w.span.SetAttributes(rateLimitResultKey.String(string(result)))
	if result == RateLimitError {
		fail(w.span, err)
	}
	w.span.End()
}
