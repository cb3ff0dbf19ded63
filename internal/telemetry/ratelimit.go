package telemetry

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

const (
	rateLimitResultKey = attribute.Key("lockkeeper.rate_limit.result")
	settlementKey      = attribute.Key("lockkeeper.rate_limit.settlement")
)

// RateLimitResult is the result of a decision.
type RateLimitResult string

// The results of a limiter.
const (
	RateLimitAcquired RateLimitResult = "acquired"
	RateLimitDenied   RateLimitResult = "denied"
	RateLimitError    RateLimitResult = "error"
	RateLimitShadow   RateLimitResult = "shadow_denied" // it passed, since the limit is in shadow
	RateLimitCanceled RateLimitResult = "canceled"      // on spans only: the caller stopped waiting
)

// SettlementResult is the result of a settlement.
type SettlementResult string

// The results of settlements.
const (
	Settled       SettlementResult = "settled"
	SettledInPart SettlementResult = "overdraft" // the use beyond the overdraft is not charged
	NotSettled    SettlementResult = "error"     // the estimate stays, or perhaps
)

// RateLimit is the telemetry of a limiter.
type RateLimit struct {
	policy      attribute.KeyValue
	counter     *live.Counter
	decisions   *Durations[RateLimitResult]
	settlements counts[SettlementResult]
	candidates  counts[RateLimitResult]
	tracer      trace.Tracer
	name        string // of spans
}

// NewRateLimit returns the telemetry of the limiter with this name.
func NewRateLimit(p Providers, scope, policy string, counter *live.Counter) *RateLimit {
	t := &RateLimit{policy: policyKey.String(policy), counter: counter, tracer: p.tracer(scope), name: "acquire " + policy}
	t.decisions = newDurations(p, durationsSpec[RateLimitResult]{
		scope: scope, name: "lockkeeper.rate_limit.decision.duration", description: "How long limiters take to decide.",
		bounds: StoreBounds, attributes: []attribute.KeyValue{t.policy}, key: rateLimitResultKey, counter: counter,
		ends:    []RateLimitResult{RateLimitAcquired, RateLimitDenied, RateLimitError, RateLimitShadow},
		failed:  RateLimitError,
		counted: map[RateLimitResult]live.Result{RateLimitDenied: live.Denied},
	})
	t.settlements = newCounts(must(p.meter(scope).Int64Counter("lockkeeper.rate_limit.settlements",
		metric.WithDescription("How many reservations were settled that had cost another amount than was estimated."),
		metric.WithUnit("{reservation}"))), settlementKey, t.policy, Settled, SettledInPart, NotSettled)
	t.candidates = newCounts(must(p.meter(scope).Int64Counter("lockkeeper.rate_limit.candidates",
		metric.WithDescription("How many requests a candidate plan would have allowed or denied."), metric.WithUnit("{request}"))),
		rateLimitResultKey, t.policy, RateLimitAcquired, RateLimitDenied, RateLimitError)
	return t
}

// Candidate counts a decision of a candidate plan.
func (t *RateLimit) Candidate(ctx context.Context, result RateLimitResult) {
	if result == RateLimitDenied {
		t.counter.Count(live.Candidate)
	}
	t.candidates.add(ctx, result)
}

// Settled counts a settlement.
func (t *RateLimit) Settled(ctx context.Context, result SettlementResult) {
	t.settlements.add(ctx, result)
}

// counts is a counter of results, whose attributes are made once.
type counts[R ~string] struct {
	counter metric.Int64Counter
	adds    map[R][]metric.AddOption
}

func newCounts[R ~string](counter metric.Int64Counter, key attribute.Key, policy attribute.KeyValue, results ...R) counts[R] {
	c := counts[R]{counter, make(map[R][]metric.AddOption, len(results))}
	for _, r := range results {
		c.adds[r] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(policy, key.String(string(r))))}
	}
	return c
}

func (c *counts[R]) add(ctx context.Context, result R) {
	if c.counter.Enabled(ctx) {
		c.counter.Add(ctx, 1, c.adds[result]...)
	}
}

// Begin is called before a decision, and End after it with its result.
func (t *RateLimit) Begin(ctx context.Context) time.Time { return t.decisions.Begin(ctx) }

// End records a decision, and annotates the current span if it is recording. It does not set the
// span's status: a denial is no error, and a failure may not be one for the request.
func (t *RateLimit) End(ctx context.Context, began time.Time, result RateLimitResult, err error) {
	if result == RateLimitShadow {
		t.counter.Count(live.Candidate)
	}
	t.decisions.End(ctx, began, result, err)
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(t.policy, rateLimitResultKey.String(string(result)))
	}
}

// Waiting is a caller that waits for tokens.
type Waiting struct {
	span trace.Span // may be nil
	mark live.Mark
}

// Wait is called before a wait for tokens, and End after it. The wait has a span if the current one
// is recording.
func (t *RateLimit) Wait(ctx context.Context) (w Waiting) {
	if trace.SpanFromContext(ctx).IsRecording() {
		_, w.span = t.tracer.Start(ctx, t.name, trace.WithAttributes(t.policy)) //nolint:spancheck // End ends it
	}
	w.mark = t.counter.Waits()
	return w
}

// End ends the span with the result of the wait. Tokens that would come after the context's
// deadline are a denial and no error.
func (w Waiting) End(ctx context.Context, err error) {
	w.mark.End()
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
