package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const idempotencyResultKey = attribute.Key("lockkeeper.idempotency.result")

// IdempotencyResult is what became of a request to begin an operation, and of an attempt that began.
type IdempotencyResult string

// The results of a guard.
const (
	Started          IdempotencyResult = "started"      // on spans only: an attempt has begun
	Executed         IdempotencyResult = "executed"     // an attempt ended, and its result is recorded
	Abandoned        IdempotencyResult = "abandoned"    // an attempt ended as if it had not been
	Failed           IdempotencyResult = "failed"       // an attempt ended, and nobody knows what it did
	Overtaken        IdempotencyResult = "overtaken"    // an attempt ended after it had lost the operation
	Replayed         IdempotencyResult = "replayed"     // an earlier result was given
	InProgress       IdempotencyResult = "in_progress"  // another attempt runs
	Mismatch         IdempotencyResult = "mismatch"     // the key belongs to another request
	Unknown          IdempotencyResult = "unknown"      // an earlier attempt is of unknown outcome
	NotRetained      IdempotencyResult = "not_retained" // an earlier result was not kept
	IdempotencyError IdempotencyResult = "error"
)

// Idempotency is the telemetry of a guard.
type Idempotency struct {
	policy    attribute.KeyValue
	durations *Durations[IdempotencyResult]
	tracer    trace.Tracer
	name      string // of spans
}

// NewIdempotency returns that of the guard with this name.
func NewIdempotency(p Providers, scope, policy string) *Idempotency {
	t := &Idempotency{policy: policyKey.String(policy), tracer: p.tracer(scope), name: "begin " + policy}
	t.durations = newDurations(p, durationsSpec[IdempotencyResult]{
		scope: scope, name: "lockkeeper.idempotency.duration",
		description: "How long attempts take until their end is recorded, and how long other requests take to be answered.",
		bounds:      WaitBounds, attributes: []attribute.KeyValue{t.policy}, key: idempotencyResultKey,
		ends: []IdempotencyResult{
			Executed, Abandoned, Failed, Overtaken, Replayed, InProgress, Mismatch, Unknown, NotRetained, IdempotencyError,
		},
		failed: IdempotencyError,
	})
	return t
}

// Beginning is a request to begin an operation, and the attempt that it became.
type Beginning struct {
	began time.Time
	span  trace.Span // nil if there is none
}

// Begin is called before a request, and Begun after it; End when an attempt has ended.
func (t *Idempotency) Begin(ctx context.Context) Beginning {
	b := Beginning{began: t.durations.Begin(ctx)}
	if trace.SpanFromContext(ctx).IsRecording() {
		_, b.span = t.tracer.Start(ctx, t.name, trace.WithAttributes(t.policy)) //nolint:spancheck // Begun ends it
	}
	return b
}

// Begun records what a request to begin came to. A replay's span links to that of the attempt that did
// the work. The error is that of a failed one.
func (t *Idempotency) Begun(ctx context.Context, b Beginning, result IdempotencyResult, worked trace.SpanContext, err error) {
	if result != Started {
		t.durations.End(ctx, b.began, result, err)
	}
	if b.span == nil {
		return
	}
	attribute := idempotencyResultKey.String(string(result))
	trace.SpanFromContext(ctx).SetAttributes(t.policy, attribute)
	b.span.SetAttributes(attribute)
	if worked.IsValid() {
		b.span.AddLink(trace.Link{SpanContext: worked})
	}
	if err != nil {
		b.span.SetAttributes(errorTypeKey.String(ErrorType(err)))
		b.span.SetStatus(codes.Error, "")
	}
	b.span.End()
}

// End records how an attempt ended. The error is that of one whose end could not be recorded yet.
func (t *Idempotency) End(ctx context.Context, b Beginning, result IdempotencyResult, err error) {
	t.durations.End(ctx, b.began, result, err)
}
