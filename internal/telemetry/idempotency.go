package telemetry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

const (
	idempotencyResultKey = attribute.Key("lockkeeper.idempotency.result")
	resolutionKey        = attribute.Key("lockkeeper.idempotency.resolution")
)

// IdempotencyResult is the result of a request to begin an operation, and of an attempt.
type IdempotencyResult string

// The results of a guard.
const (
	Started          IdempotencyResult = "started"               // on spans only: an attempt has begun
	Executed         IdempotencyResult = "executed"              // an attempt ended, and its result is recorded
	Unretained       IdempotencyResult = "executed_not_retained" // an attempt ended, and is recorded without its result
	Abandoned        IdempotencyResult = "abandoned"             // an attempt ended without a trace
	Failed           IdempotencyResult = "failed"                // an attempt ended, and its outcome is unknown
	Overtaken        IdempotencyResult = "overtaken"             // an attempt ended after it had lost the operation
	Unconfirmed      IdempotencyResult = "unconfirmed"           // an attempt ended, and recording its end is retried
	Dropped          IdempotencyResult = "dropped"               // an attempt ended, and recording its end is no longer retried
	Replayed         IdempotencyResult = "replayed"              // an earlier result was returned
	InProgress       IdempotencyResult = "in_progress"           // another attempt is running
	Mismatch         IdempotencyResult = "mismatch"              // the key belongs to another request
	Unknown          IdempotencyResult = "unknown"               // an earlier attempt is of unknown outcome
	NotRetained      IdempotencyResult = "not_retained"          // an earlier result was not kept
	ScopeFull        IdempotencyResult = "scope_full"            // the scope has its maximum of records
	IdempotencyError IdempotencyResult = "error"
)

// Idempotency is the telemetry of a guard.
type Idempotency struct {
	policy      attribute.KeyValue
	counter     *live.Counter
	durations   *Durations[IdempotencyResult]
	resolutions metric.Int64Counter
	tracer      trace.Tracer
	name        string // of spans
	logger      *slog.Logger
	notFound    *Repeated // unknown outcomes that stay unknown
	filling     firsts    // scopes that have most of their records
	full        firsts    // scopes that have all of them

	mu      sync.Mutex
	pending int // unconfirmed completions
	// since the first pending one
	confirmed, dropped int
}

// NewIdempotency returns the telemetry of the guard with this name.
func NewIdempotency(p Providers, logger *slog.Logger, scope, policy string, counter *live.Counter) *Idempotency {
	t := &Idempotency{policy: policyKey.String(policy), counter: counter, tracer: p.tracer(scope), name: "begin " + policy}
	t.logger = logger.With("mechanism", "idempotency", "policy", policy)
	t.notFound = NewRepeated(t.logger, "lockkeeper: an unknown outcome is not found out")
	t.resolutions = must(p.meter(scope).Int64Counter("lockkeeper.idempotency.resolutions",
		metric.WithDescription("How many operations of unknown outcome were resolved."), metric.WithUnit("{operation}")))
	t.durations = newDurations(p, durationsSpec[IdempotencyResult]{
		scope: scope, name: "lockkeeper.idempotency.duration",
		description: "How long attempts take until their end is recorded, and how long other requests take to be answered.",
		bounds:      WaitBounds, attributes: []attribute.KeyValue{t.policy}, key: idempotencyResultKey, counter: counter,
		ends: []IdempotencyResult{
			Executed, Unretained, Abandoned, Failed, Overtaken, Unconfirmed, Dropped, Replayed, InProgress, Mismatch, Unknown, NotRetained,
			ScopeFull, IdempotencyError,
		},
		failed: IdempotencyError,
		counted: map[IdempotencyResult]live.Result{
			InProgress: live.Denied, Mismatch: live.Denied, Unknown: live.Denied, NotRetained: live.Denied, ScopeFull: live.Denied,
			Failed: live.Failed, Overtaken: live.Failed, Dropped: live.Failed,
			Replayed: live.Other, Abandoned: live.Other, Unconfirmed: live.Other,
		},
	})
	return t
}

// Beginning is a request to begin an operation, and the attempt that may follow.
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

// Begun records the result of a request to begin. A replay's span links to the span of the attempt
// that did the work. The error counts only if the result is [IdempotencyError].
func (t *Idempotency) Begun(ctx context.Context, b Beginning, result IdempotencyResult, worked trace.SpanContext, err error) {
	if result != IdempotencyError {
		err = nil
	}
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
		fail(b.span, err)
	}
	b.span.End()
}

// End records the result of an attempt. The error counts as for Begun.
func (t *Idempotency) End(ctx context.Context, b Beginning, result IdempotencyResult, err error) {
	if result != IdempotencyError {
		err = nil
	}
	t.durations.End(ctx, b.began, result, err)
}

// Unconfirmed is called for a completion that the store did not confirm. Confirmed or Dropped
// follows. The first one is logged, and their numbers when none is pending any more: an outage is
// two lines.
func (t *Idempotency) Unconfirmed(ctx context.Context, err error) {
	t.mu.Lock()
	t.pending++
	first := t.pending == 1
	t.mu.Unlock()
	if first {
		t.logger.WarnContext(ctx, "lockkeeper: completions are unconfirmed and are retried", "error.type", ErrorType(err))
	}
}

// Confirmed is called when the store has confirmed a pending completion.
func (t *Idempotency) Confirmed(ctx context.Context) { t.ended(ctx, &t.confirmed) }

// Dropped is called when a completion is dropped. The first one of an outage is logged.
func (t *Idempotency) Dropped(ctx context.Context, err error) {
	t.mu.Lock()
	first := t.dropped == 0
	t.mu.Unlock()
	if first {
		t.logger.ErrorContext(ctx, "lockkeeper: completions are dropped; the outcome of their operations is unknown",
			"error.type", ErrorType(err))
	}
	t.ended(ctx, &t.dropped)
}

// ended counts a completion that is no longer pending.
func (t *Idempotency) ended(ctx context.Context, count *int) {
	t.mu.Lock()
	*count++
	t.pending--
	last, confirmed, dropped := t.pending == 0, t.confirmed, t.dropped
	if last {
		t.confirmed, t.dropped = 0, 0
	}
	t.mu.Unlock()
	if last {
		t.logger.InfoContext(ctx, "lockkeeper: no completions are pending any more", "confirmed", confirmed, "dropped", dropped)
	}
}

// Resolution says how an operation of unknown outcome was resolved.
type Resolution string

// The resolutions.
const (
	Happened      Resolution = "happened"
	AnswerLost    Resolution = "answer_lost"
	NeverHappened Resolution = "never_happened"
)

// Resolved is called when an operation was resolved, by an operator or by the application.
func (t *Idempotency) Resolved(ctx context.Context, how Resolution, id, by, why string) {
	t.resolutions.Add(ctx, 1, metric.WithAttributes(t.policy, resolutionKey.String(string(how))))
	t.logger.InfoContext(ctx, "lockkeeper: an unknown outcome is resolved", "operation", id, "resolution", string(how), "by", by, "why", why)
}

// NotReconciled is called when the application could not find out an unknown outcome.
func (t *Idempotency) NotReconciled(ctx context.Context, id string, err error) {
	t.notFound.Found(ctx, "operation", id, "error", err)
}

// ScopeHas is called when a scope has begun one more operation, with the number of its records if
// that is known, and with their maximum. A scope that has 80 % of the maximum is logged by its
// digest.
func (t *Idempotency) ScopeHas(ctx context.Context, digest string, records, most int) {
	if records >= most-most/5 && t.filling.first(digest) {
		t.logger.WarnContext(ctx, "lockkeeper: a scope has 80 % of the records that it may have (guard.WithMaxPerScope)",
			"scope", digest, "records", records, "max_records", most)
	}
}

// ScopeIsFull is called when a new operation is refused because its scope is full. The scope has a
// free place after the time free.
func (t *Idempotency) ScopeIsFull(ctx context.Context, digest string, most int, free time.Duration) {
	if t.full.first(digest) {
		t.logger.WarnContext(ctx, "lockkeeper: a scope is full (guard.WithMaxPerScope), so its new operations are refused",
			"scope", digest, "max_records", most, "retry_after", free)
	}
}
