package telemetry

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

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
