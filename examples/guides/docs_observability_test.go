package guides_test

import (
	"context"
	"fmt"
	"io"
	"strings"

	clientgolang "github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Metrics go to Prometheus, whose default registry has them then.
func Example_telemetry() {
	ctx := context.Background()
	exporter, err := stdouttrace.New(stdouttrace.WithWriter(io.Discard)) // or one for your collector
	if err != nil {
		panic(err)
	}
	defer otel.SetMeterProvider(otel.GetMeterProvider())
	defer otel.SetTracerProvider(otel.GetTracerProvider())
	reader, err := prometheus.New() // go.opentelemetry.io/otel/exporters/prometheus, or any other reader
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithBatcher(exporter)))
	if err != nil {
		panic(err)
	}
	defer func() { _ = otel.GetTracerProvider().(*trace.TracerProvider).Shutdown(ctx) }()

	store := memstore.New()
	defer store.Close()
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	if _, err := limiter.Allow(ctx, "customer-1"); err != nil {
		panic(err)
	}
	families, err := clientgolang.DefaultGatherer.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "lockkeeper_rate_limit") {
			fmt.Println(f.GetName())
		}
	}
	// Output: lockkeeper_rate_limit_decision_duration_seconds
}
