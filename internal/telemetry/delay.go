package telemetry

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

const (
	putOutcomeKey    = attribute.Key("lockkeeper.delay.put")
	cancelOutcomeKey = attribute.Key("lockkeeper.delay.cancel")
	runEndKey        = attribute.Key("lockkeeper.delay.end")
)

// RunEnd is the end of an attempt at a delayed task.
type RunEnd string

// The ends of attempts.
const (
	RunDone   RunEnd = "done"
	RunAgain  RunEnd = "again" // another attempt follows
	RunBuried RunEnd = "buried"
	RunLost   RunEnd = "lost"  // its lease had ended
	RunError  RunEnd = "error" // the store did not confirm its end
)

// Delay is the telemetry of a queue of delayed tasks.
type Delay struct {
	policy        attribute.KeyValue
	counter       *live.Counter
	lateness      metric.Float64Histogram
	record        []metric.RecordOption
	durations     *Durations[RunEnd]
	puts, cancels metric.Int64Counter
	running       metric.Int64UpDownCounter
	add           []metric.AddOption
	tracer        trace.Tracer
	name          string // of spans
	logger        *slog.Logger
	damage        *Repeated
	failing       atomic.Bool
}

// NewDelay returns the telemetry of the queue with this name.
func NewDelay(p Providers, logger *slog.Logger, scope, policy string, counter *live.Counter) *Delay {
	meter, key := p.meter(scope), policyKey.String(policy)
	own := metric.WithAttributeSet(attribute.NewSet(key))
	d := &Delay{
		policy: key, counter: counter, record: []metric.RecordOption{own}, add: []metric.AddOption{own}, tracer: p.tracer(scope), name: "run " + policy,
		logger: logger.With("mechanism", "delay", "policy", policy),
		lateness: must(meter.Float64Histogram("lockkeeper.delay.lateness", metric.WithUnit("s"),
			metric.WithDescription("How long after they were due tasks begin."), metric.WithExplicitBucketBoundaries(WaitBounds...))),
		durations: newDurations(p, durationsSpec[RunEnd]{
			scope: scope, name: "lockkeeper.delay.run.duration", description: "How long attempts at tasks take until their end is recorded.",
			bounds: WaitBounds, attributes: []attribute.KeyValue{key}, key: runEndKey, counter: counter,
			ends: []RunEnd{RunDone, RunAgain, RunBuried, RunLost, RunError}, failed: RunError,
			counted: map[RunEnd]live.Result{RunAgain: live.Other, RunBuried: live.Failed, RunLost: live.Failed},
		}),
		puts: must(meter.Int64Counter("lockkeeper.delay.puts",
			metric.WithDescription("How many tasks were put."), metric.WithUnit("{task}"))),
		cancels: must(meter.Int64Counter("lockkeeper.delay.cancels",
			metric.WithDescription("How many tasks were to be cancelled."), metric.WithUnit("{task}"))),
		running: must(meter.Int64UpDownCounter("lockkeeper.delay.running",
			metric.WithDescription("How many tasks run in this process."), metric.WithUnit("{task}"))),
	}
	d.damage = NewRepeated(d.logger, DamagedRecord)
	return d
}

// Put records a put, with its outcome or its error.
func (d *Delay) Put(ctx context.Context, outcome string, err error) {
	d.count(ctx, d.puts, putOutcomeKey, outcome, err)
}

// Cancel records a cancel, with its outcome or its error.
func (d *Delay) Cancel(ctx context.Context, outcome string, err error) {
	d.count(ctx, d.cancels, cancelOutcomeKey, outcome, err)
}

func (d *Delay) count(ctx context.Context, c metric.Int64Counter, key attribute.Key, outcome string, err error) {
	if !c.Enabled(ctx) {
		return
	}
	attributes := []attribute.KeyValue{d.policy, key.String(outcome)}
	if err != nil {
		attributes = []attribute.KeyValue{d.policy, key.String("error"), errorTypeKey.String(ErrorType(err))}
	}
	c.Add(ctx, 1, metric.WithAttributes(attributes...))
}

// Run is an attempt at a task.
type Run struct {
	began   time.Time
	span    trace.Span
	running live.Mark
}

// Begin records the begin of an attempt that is late by this time, and returns the context of its
// span, which links to the span of the put.
func (d *Delay) Begin(ctx context.Context, late time.Duration, put trace.SpanContext) (context.Context, Run) {
	r := Run{began: d.durations.Begin(ctx), running: d.counter.Holds(1)}
	d.lateness.Record(ctx, late.Seconds(), d.record...)
	d.running.Add(ctx, 1, d.add...)
	options := []trace.SpanStartOption{trace.WithAttributes(d.policy), trace.WithSpanKind(trace.SpanKindConsumer)}
	if put.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: put}))
	}
	ctx, r.span = d.tracer.Start(ctx, d.name, options...)
	return ctx, r
}

// End records the end of an attempt. The error is of an unconfirmed end.
func (d *Delay) End(ctx context.Context, r Run, how RunEnd, err error) {
	if how != RunError {
		err = nil
	}
	d.durations.End(ctx, r.began, how, err)
	d.running.Add(ctx, -1, d.add...)
	r.running.End()
	r.span.SetAttributes(runEndKey.String(string(how)))
	if err != nil {
		fail(r.span, err)
	}
	r.span.End()
}

// Buried logs a task that was buried.
func (d *Delay) Buried(ctx context.Context, id string, attempts int, reason string) {
	d.logger.WarnContext(ctx, "lockkeeper: a task is buried", "task", id, "attempts", attempts, "reason", reason)
}

// Damaged logs a task whose payload could not be read, and which is to be buried.
func (d *Delay) Damaged(ctx context.Context) { d.damage.Found(ctx, "tasks", 1) }

// Taken records the reply to a take. An outage is logged when it begins and when it ends.
func (d *Delay) Taken(ctx context.Context, err error) {
	switch {
	case err == nil && d.failing.Swap(false):
		d.logger.InfoContext(ctx, "lockkeeper: tasks are taken again")
	case err != nil && !d.failing.Swap(true):
		d.logger.WarnContext(ctx, "lockkeeper: tasks cannot be taken", "error.type", ErrorType(err))
	}
}
