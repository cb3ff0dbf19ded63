package observability_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The current span has the decision, and nothing of its key.
func TestCurrentSpan(t *testing.T) {
	const secret = "marked-secret"
	exporter := tracetest.NewInMemoryExporter()
	provider := trace.NewTracerProvider(trace.WithSyncer(exporter))
	store := storetest.NewFaulty(memstore.New())
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerHour(1))
	if err != nil {
		t.Fatal(err)
	}
	orders, err := guard.New(store, "orders")
	if err != nil {
		t.Fatal(err)
	}
	var attempt *guard.Attempt
	begin := func(key, fingerprint string) func(context.Context) {
		return func(ctx context.Context) {
			a, _, _ := orders.Begin(ctx, guard.Operation{Scope: secret, Key: secret + key, Fingerprint: []byte(secret + fingerprint)})
			if a != nil {
				attempt = a
			}
		}
	}
	allow := func(ctx context.Context) { _, _ = limiter.Allow(ctx, secret) }
	limit := func(result string) map[string]string {
		return map[string]string{"lockkeeper.policy": "api", "lockkeeper.rate_limit.result": result}
	}
	idem := func(result string) map[string]string {
		return map[string]string{"lockkeeper.policy": "orders", "lockkeeper.idempotency.result": result}
	}
	down := func(f func(context.Context)) func(context.Context) {
		return func(ctx context.Context) {
			store.Break(storetest.Any, storetest.Down)
			defer store.Mend(storetest.Any)
			f(ctx)
		}
	}
	for _, step := range []struct {
		do   func(context.Context)
		want map[string]string
	}{
		{allow, limit("acquired")},
		{allow, limit("denied")},
		{down(allow), limit("error")},
		{begin("1", ""), idem("started")},
		{begin("1", ""), idem("in_progress")},
		{begin("1", "x"), idem("mismatch")},
		{func(ctx context.Context) { _ = attempt.Complete(ctx, guard.Result{Data: []byte(secret)}) }, map[string]string{}},
		{begin("1", ""), idem("replayed")},
		{begin("2", ""), idem("started")},
		{func(ctx context.Context) { _ = attempt.CompleteUnknown(ctx) }, map[string]string{}},
		{begin("2", ""), idem("unknown")},
		{begin("3", ""), idem("started")},
		{func(ctx context.Context) { _ = attempt.CompleteNotRetained(ctx, 200) }, map[string]string{}},
		{begin("3", ""), idem("not_retained")},
		{down(begin("4", "")), idem("error")},
	} {
		exporter.Reset()
		ctx, span := provider.Tracer("test").Start(t.Context(), "request")
		step.do(ctx)
		span.End()
		got := map[string]string{}
		for _, a := range exporter.GetSpans()[0].Attributes {
			got[string(a.Key)] = a.Value.AsString()
			if strings.Contains(a.Value.AsString(), secret) {
				t.Errorf("%s has %q", a.Key, a.Value.AsString())
			}
		}
		if !maps.Equal(got, step.want) {
			t.Errorf("the span has %v, want %v", got, step.want)
		}
		if status := exporter.GetSpans()[0].Status; status.Code != codes.Unset {
			t.Errorf("the span has status %v", status)
		}
	}
}
