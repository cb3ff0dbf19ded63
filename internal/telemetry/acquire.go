package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

const (
	lockResultKey      = attribute.Key("lockkeeper.lock.result")
	lockEndKey         = attribute.Key("lockkeeper.lock.end")
	lockHolderKey      = attribute.Key("lockkeeper.lock.holder")
	semaphoreResultKey = attribute.Key("lockkeeper.semaphore.result")
	tierKey            = attribute.Key("lockkeeper.tier")
)

// AcquireResult is the result of a request for a lock or a permit.
type AcquireResult string

// The results of a request.
const (
	Acquired     AcquireResult = "acquired"
	Busy         AcquireResult = "busy"     // others hold it
	Canceled     AcquireResult = "canceled" // the caller stopped waiting
	AcquireError AcquireResult = "error"
)

var acquireResults = []AcquireResult{Acquired, Busy, Canceled, AcquireError}

// HoldEnd is the end of a lease.
type HoldEnd string

// The ends of leases.
const (
	Released HoldEnd = "released"
	Lost     HoldEnd = "lost"
	Expired  HoldEnd = "expired"
)

// Acquisitions is the telemetry of a Locker or a Semaphore.
type Acquisitions struct {
	policy    attribute.KeyValue
	resultKey attribute.Key
	counter   *live.Counter
	spec      durationsSpec[AcquireResult]
	durations *Durations[AcquireResult]
	tracer    trace.Tracer
	name      string // of the spans

	holds  *Durations[HoldEnd]       // of locks; nil for a Semaphore
	active metric.Int64UpDownCounter // permits; nil for a Locker
	add    []metric.AddOption
}

func newAcquisitions(p Providers, scope, policy, mechanism string, key attribute.Key, counter *live.Counter) *Acquisitions {
	a := &Acquisitions{policy: policyKey.String(policy), resultKey: key, counter: counter, tracer: p.tracer(scope), name: "acquire " + policy}
	a.spec = durationsSpec[AcquireResult]{
		scope: scope, name: "lockkeeper." + mechanism + ".acquire.duration",
		description: "How long it takes to get what is asked for, or to be refused, waiting included.",
		bounds:      WaitBounds, attributes: []attribute.KeyValue{a.policy}, key: key, counter: counter,
		ends: acquireResults, failed: AcquireError,
		counted: map[AcquireResult]live.Result{Busy: live.Denied, Canceled: live.Other},
	}
	a.durations = newDurations(p, a.spec)
	return a
}

// Tier is the telemetry of the requests of one tier.
type Tier struct {
	durations *Durations[AcquireResult]
	name      attribute.KeyValue
}

// Tier returns the telemetry of the tier with this name.
func (a *Acquisitions) Tier(name string) *Tier {
	t := &Tier{name: tierKey.String(name)}
	spec := a.spec
	spec.attributes = append(spec.attributes[:len(spec.attributes):len(spec.attributes)], t.name)
	t.durations = &Durations[AcquireResult]{histogram: a.durations.histogram, counter: a.spec.counter, ends: spec.allEnds()}
	return t
}

// Acquisition is a request in flight. The zero value records nothing.
type Acquisition struct {
	began   time.Time
	span    trace.Span // may be nil
	waiting live.Mark
}

// Begin is called before a request, and End after it. A request that may wait has a span of its own
// if the current one is recording.
func (a *Acquisitions) Begin(ctx context.Context, waits bool) Acquisition {
	x := Acquisition{began: a.durations.Begin(ctx)}
	if waits && trace.SpanFromContext(ctx).IsRecording() {
		_, x.span = a.tracer.Start(ctx, a.name, trace.WithAttributes(a.policy)) //nolint:spancheck // End ends it
	}
	return x
}

// End records a request that has ended, of a tier unless that is nil. The error counts only if the
// result is [AcquireError]: a busy or canceled request is no failure.
func (a *Acquisitions) End(ctx context.Context, x Acquisition, tier *Tier, result AcquireResult, err error) {
	if result != AcquireError {
		err = nil
	}
	durations := a.durations
	if tier != nil {
		durations = tier.durations
	}
	durations.End(ctx, x.began, result, err)
	x.waiting.End()
	attributes := func(span trace.Span) {
		span.SetAttributes(a.policy, a.resultKey.String(string(result)))
		if tier != nil {
			span.SetAttributes(tier.name)
		}
	}
	if x.span == nil {
		if span := trace.SpanFromContext(ctx); span.IsRecording() {
			attributes(span)
		}
		return
	}
	attributes(x.span)
	if err != nil {
		fail(x.span, err)
	}
	x.span.End()
}

// Waits is called when a request joins a queue. It may be called more than once.
func (a *Acquisitions) Waits(x *Acquisition) {
	if x.waiting == (live.Mark{}) {
		x.waiting = a.counter.Waits()
	}
}

// Traced reports whether the request has a span.
func (x Acquisition) Traced() bool { return x.span != nil }

// Behind sets the holder that the request waits for on its span, with a link to the span of the
// holder's request.
func (x Acquisition) Behind(holder string, span trace.SpanContext) {
	if x.span == nil {
		return
	}
	if holder != "" {
		x.span.SetAttributes(lockHolderKey.String(holder))
	}
	if span.IsValid() {
		x.span.AddLink(trace.Link{SpanContext: span})
	}
}

// NewLock returns the telemetry of the Locker with this name.
func NewLock(p Providers, scope, policy string, counter *live.Counter) *Acquisitions {
	a := newAcquisitions(p, scope, policy, "lock", lockResultKey, counter)
	a.holds = newDurations(p, durationsSpec[HoldEnd]{
		scope: scope, name: "lockkeeper.lock.hold.duration", description: "How long locks are held.",
		bounds: WaitBounds, attributes: []attribute.KeyValue{a.policy}, key: lockEndKey,
		ends: []HoldEnd{Released, Lost, Expired},
	})
	return a
}

// NewSemaphore returns the telemetry of the Semaphore with this name.
func NewSemaphore(p Providers, scope, policy string, counter *live.Counter) *Acquisitions {
	a := newAcquisitions(p, scope, policy, "semaphore", semaphoreResultKey, counter)
	a.active = must(p.meter(scope).Int64UpDownCounter("lockkeeper.semaphore.permit.active",
		metric.WithDescription("How many permits this process has, by weight."), metric.WithUnit("{permit}")))
	a.add = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(a.policy))}
	return a
}

// Hold starts the time of a held lock, and Ended ends it.
func (a *Acquisitions) Hold(ctx context.Context) (held time.Time) {
	if a.holds != nil {
		held = a.holds.Begin(ctx)
	}
	return held
}

// Ended records that a lock was held until now.
func (a *Acquisitions) Ended(ctx context.Context, held time.Time, how HoldEnd) {
	if a.holds != nil {
		a.holds.End(ctx, held, how, nil)
	}
}

// Holding records a new hold of this weight. Released follows.
func (a *Acquisitions) Holding(ctx context.Context, weight int) live.Mark {
	a.permits(ctx, weight)
	if a.active == nil {
		weight = 1 // of a lock
	}
	return a.counter.Holds(weight)
}

// Released records the end of a hold, which may have another weight now.
func (a *Acquisitions) Released(ctx context.Context, held live.Mark, weight int) {
	a.permits(ctx, -weight)
	held.End()
}

// permits records that the permits of this process have changed by n.
func (a *Acquisitions) permits(ctx context.Context, n int) {
	if a.active != nil && a.active.Enabled(ctx) {
		a.active.Add(ctx, int64(n), a.add...)
	}
}

// ObserveCapacity observes the capacity of a Semaphore that changes by itself, until the returned
// function is called.
func ObserveCapacity(p Providers, scope, policy string, capacity func() int64) (end func()) {
	meter := p.meter(scope)
	gauge := must(meter.Int64ObservableGauge("lockkeeper.semaphore.capacity",
		metric.WithDescription("The present capacity of a semaphore that adapts it."), metric.WithUnit("{permit}")))
	set := metric.WithAttributeSet(attribute.NewSet(policyKey.String(policy)))
	return observe(meter, func(o metric.Observer) { o.ObserveInt64(gauge, capacity(), set) }, gauge)
}
