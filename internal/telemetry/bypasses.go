package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const causeKey = attribute.Key("lockkeeper.outage.cause")

// Bypasses counts the requests that passed a middleware without its store.
type Bypasses struct {
	counter metric.Int64Counter
	adds    map[store.Cause][]metric.AddOption
}

// NewBypasses returns the counter of the middleware with this policy and mechanism. The policy is
// empty for a middleware without a name.
func NewBypasses(p Providers, scope, policy, mechanism string) *Bypasses {
	b := &Bypasses{
		counter: must(p.meter(scope).Int64Counter("lockkeeper.policy.bypasses",
			metric.WithDescription("How many requests passed without the store, as policy.FailOpen and policy.RunUnprotected have it."),
			metric.WithUnit("{request}"))),
		adds: make(map[store.Cause][]metric.AddOption, len(store.Causes)),
	}
	for _, cause := range store.Causes {
		set := []attribute.KeyValue{mechanismKey.String(mechanism), causeKey.String(string(cause))}
		if policy != "" {
			set = append(set, policyKey.String(policy))
		}
		b.adds[cause] = []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(set...))}
	}
	return b
}

// Add counts a request.
func (b *Bypasses) Add(ctx context.Context, cause store.Cause) {
	if b.counter.Enabled(ctx) {
		b.counter.Add(ctx, 1, b.adds[cause]...)
	}
}

const shadowReasonKey = attribute.Key("lockkeeper.shadow.reason")

// Shadows counts the requests that passed a middleware that would have denied them.
type Shadows struct {
	counter metric.Int64Counter
	set     []attribute.KeyValue
}

// NewShadows returns the counter of the middleware with this policy and mechanism.
func NewShadows(p Providers, scope, policy, mechanism string) *Shadows {
	return &Shadows{
		counter: must(p.meter(scope).Int64Counter("lockkeeper.policy.shadow_denials",
			metric.WithDescription("How many requests passed that would have been denied, as policy.Shadow has it."),
			metric.WithUnit("{request}"))),
		set: []attribute.KeyValue{policyKey.String(policy), mechanismKey.String(mechanism)},
	}
}

// Add counts a request, and annotates the current span if it is recording. There are only a few
// reasons.
func (s *Shadows) Add(ctx context.Context, reason string) {
	attr := shadowReasonKey.String(reason)
	if s.counter.Enabled(ctx) {
		s.counter.Add(ctx, 1, metric.WithAttributes(s.set...), metric.WithAttributes(attr))
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attr)
	}
}
