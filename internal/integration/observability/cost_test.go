package observability_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// The bounds of what the telemetry of a decision costs on a machine of our days: 20 ns without an
// SDK, and 400 ns with one that does not sample the request. Benchmarks measure it; a test would
// depend on the machine.
//
//	go test -run '^$' -bench Cost ./internal/integration/observability

// setup is a program's telemetry setup.
type setup struct {
	name      string
	providers func(testing.TB) telemetry.Providers
	traced    bool // requests have a span, which is not sampled
}

var setups = []setup{
	{"no SDK", func(testing.TB) telemetry.Providers {
		return telemetry.Providers{Meter: otel.GetMeterProvider(), Tracer: otel.GetTracerProvider()}
	}, false},
	{"no-op providers", func(testing.TB) telemetry.Providers {
		return telemetry.Providers{Meter: metricnoop.NewMeterProvider(), Tracer: tracenoop.NewTracerProvider()}
	}, false},
	{"an SDK that does not sample", func(t testing.TB) telemetry.Providers {
		meters := metric.NewMeterProvider(metric.WithReader(metric.NewManualReader()))
		tracers := trace.NewTracerProvider(trace.WithSampler(trace.NeverSample()))
		t.Cleanup(func() {
			_ = meters.Shutdown(context.Background())
			_ = tracers.Shutdown(context.Background())
		})
		return telemetry.Providers{Meter: meters, Tracer: tracers}
	}, true},
}

// context is that of a request.
func (s setup) context(p telemetry.Providers) context.Context {
	ctx := context.Background()
	if s.traced {
		ctx, _ = p.Tracer.Tracer("application").Start(ctx, "request") //nolint:spancheck // is not sampled
	}
	return ctx
}

func (s setup) limiter(t testing.TB, p telemetry.Providers) *tokenbucket.Limiter {
	store := memstore.New(memstore.WithMeterProvider(p.Meter))
	t.Cleanup(func() { _ = store.Close() })
	return must(tokenbucket.New(store, "api", tokenbucket.PerSecond(1_000_000_000),
		tokenbucket.WithMeterProvider(p.Meter), tokenbucket.WithTracerProvider(p.Tracer)))
}

// The telemetry of a decision allocates nothing, unless an SDK listens.
func TestCostOfADecisionInAllocations(t *testing.T) {
	for _, s := range setups[:2] {
		p := s.providers(t)
		ctx, one := s.context(p), telemetry.NewRateLimit(p, tokenbucket.ScopeName, "api", nil)
		if n := testing.AllocsPerRun(1000, func() { one.End(ctx, one.Begin(ctx), telemetry.RateLimitAcquired, nil) }); n != 0 {
			t.Errorf("%s: the telemetry of a decision costs %v allocations", s.name, n)
		}
		if n := testing.AllocsPerRun(1000, func() { one.Wait(ctx).End(ctx, nil) }); n != 0 {
			t.Errorf("%s: that of waiting for tokens costs %v allocations", s.name, n)
		}
		lock := telemetry.NewLock(p, tokenbucket.ScopeName, "carts", nil)
		if n := testing.AllocsPerRun(1000, func() {
			lock.End(ctx, lock.Begin(ctx, true), nil, telemetry.Acquired, nil)
			lock.Ended(ctx, lock.Hold(ctx), telemetry.Released)
		}); n != 0 {
			t.Errorf("%s: that of a lock costs %v allocations", s.name, n)
		}
		permits := telemetry.NewSemaphore(p, tokenbucket.ScopeName, "reports", nil)
		tier := permits.Tier("low")
		if n := testing.AllocsPerRun(1000, func() { permits.End(ctx, permits.Begin(ctx, false), tier, telemetry.Busy, nil) }); n != 0 {
			t.Errorf("%s: that of a tier costs %v allocations", s.name, n)
		}
		guard := telemetry.NewIdempotency(p, slog.New(slog.DiscardHandler), tokenbucket.ScopeName, "orders", nil)
		if n := testing.AllocsPerRun(1000, func() {
			guard.End(ctx, guard.Begin(ctx), telemetry.Executed, nil)
		}); n != 0 {
			t.Errorf("%s: that of an operation costs %v allocations", s.name, n)
		}
	}
}

// BenchmarkCostOfADecision measures the telemetry of a decision alone.
func BenchmarkCostOfADecision(b *testing.B) {
	for _, s := range setups {
		b.Run(s.name, func(b *testing.B) {
			p := s.providers(b)
			ctx, one := s.context(p), telemetry.NewRateLimit(p, tokenbucket.ScopeName, "api", nil)
			b.ReportAllocs()
			for b.Loop() {
				one.End(ctx, one.Begin(ctx), telemetry.RateLimitAcquired, nil)
			}
		})
	}
}

// BenchmarkCostInAllow measures a whole decision on a store in memory, for comparison.
func BenchmarkCostInAllow(b *testing.B) {
	for _, s := range setups {
		b.Run(s.name, func(b *testing.B) {
			p := s.providers(b)
			ctx, l := s.context(p), s.limiter(b, p)
			b.ReportAllocs()
			for b.Loop() {
				_ = must(l.Allow(ctx, "k"))
			}
		})
	}
}

// BenchmarkCostOfTheClock measures two readings of the clock, which every histogram of durations
// needs.
func BenchmarkCostOfTheClock(b *testing.B) {
	var sum time.Duration
	for b.Loop() {
		sum += time.Since(time.Now())
	}
	_ = sum
}
