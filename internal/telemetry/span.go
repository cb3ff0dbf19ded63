// Package telemetry says, to OpenTelemetry, what the mechanisms decided. It never tells keys or
// scopes.
package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// The attributes of a decision. Policy is the name that the user gave the mechanism; the results
// are closed sets.
const (
	policyKey            = attribute.Key("lockkeeper.policy")
	rateLimitResultKey   = attribute.Key("lockkeeper.rate_limit.result")
	idempotencyResultKey = attribute.Key("lockkeeper.idempotency.result")
)

// RateLimitResult is what became of a question to a limiter.
type RateLimitResult string

// The results of a limiter.
const (
	Acquired       RateLimitResult = "acquired"
	Denied         RateLimitResult = "denied"
	RateLimitError RateLimitResult = "error"
)

// IdempotencyResult is what became of a request to begin an operation.
type IdempotencyResult string

// The results of a guard.
const (
	Executed         IdempotencyResult = "executed"
	Replayed         IdempotencyResult = "replayed"
	InProgress       IdempotencyResult = "in_progress"
	Mismatch         IdempotencyResult = "mismatch"
	Unknown          IdempotencyResult = "unknown"
	NotRetained      IdempotencyResult = "not_retained"
	IdempotencyError IdempotencyResult = "error"
)

// RateLimit annotates the current span, if it records. A denial is no error, so the span's status
// is left alone.
func RateLimit(ctx context.Context, policy string, result RateLimitResult) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(policyKey.String(policy), rateLimitResultKey.String(string(result)))
	}
}

// Idempotency annotates the current span, if it records.
func Idempotency(ctx context.Context, policy string, result IdempotencyResult) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(policyKey.String(policy), idempotencyResultKey.String(string(result)))
	}
}
