package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

const rateLimitResultKey = attribute.Key("lockkeeper.rate_limit.result")

// RateLimitResult is what became of a question to a limiter.
type RateLimitResult string

// The results of a limiter.
const (
	RateLimitAcquired RateLimitResult = "acquired"
	RateLimitDenied   RateLimitResult = "denied"
	RateLimitError    RateLimitResult = "error"
)

// RateLimit is the telemetry of a limiter.
type RateLimit struct {
	policy    attribute.KeyValue
	decisions *Durations[RateLimitResult]
}

// NewRateLimit returns that of the limiter with this name.
func NewRateLimit(p Providers, scope, policy string) *RateLimit {
	t := &RateLimit{policy: policyKey.String(policy)}
	t.decisions = newDurations(p, durationsSpec[RateLimitResult]{
		scope: scope, name: "lockkeeper.rate_limit.decision.duration", description: "How long limiters take to decide.",
		bounds: StoreBounds, attributes: []attribute.KeyValue{t.policy}, key: rateLimitResultKey,
		ends: []RateLimitResult{RateLimitAcquired, RateLimitDenied, RateLimitError}, failed: RateLimitError,
	})
	return t
}

// Begin is called before a decision, and End after it with what it returned.
func (t *RateLimit) Begin(ctx context.Context) time.Time { return t.decisions.Begin(ctx) }

// End records a decision, and annotates the current span if it records. A denial is no error, and whether
// a failure is one for the request is not the limiter's to say.
func (t *RateLimit) End(ctx context.Context, began time.Time, result RateLimitResult, err error) {
	t.decisions.End(ctx, began, result, err)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(t.policy, rateLimitResultKey.String(string(result)))
	}
}
