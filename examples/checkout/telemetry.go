package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

const (
	serviceName = "checkout" // unless OTEL_SERVICE_NAME is set
	// flushTimeout is for how long the end of the program waits for the traces, and for the metrics,
	// that have not been sent yet.
	flushTimeout = 3 * time.Second
)

// destination is where telemetry goes besides GET /metrics: the value of the flag -otel.
type destination string

const (
	nowhere  destination = ""
	toStdout destination = "stdout"
	toOTLP   destination = "otlp"
)

// parse is for flag.Func.
func (d *destination) parse(text string) error {
	switch *d = destination(text); *d {
	case nowhere, toStdout, toOTLP:
		return nil
	}
	return errors.New("must be stdout or otlp")
}

// telemetry is the OpenTelemetry SDK at work.
type telemetry struct {
	metrics http.Handler                  // GET /metrics
	ends    []func(context.Context) error // flush the exporters
}

// startTelemetry makes the SDK's providers the global ones. The mechanisms, the stores and otelgin take
// those that are global when they are made, so it comes before all of them. A program that has several
// providers names them instead, with the options WithMeterProvider and WithTracerProvider.
//
// Metrics are always collected, for GET /metrics. There are no traces without a destination, and then they
// cost nothing.
func startTelemetry(ctx context.Context, to destination, stdout io.Writer) (*telemetry, error) {
	who, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(semconv.ServiceName(serviceName)), resource.WithFromEnv()) // the last one wins
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	// A registry of our own contains nothing that dependencies register.
	registry := prometheus.NewRegistry()
	scraped, err := promexporter.New(promexporter.WithRegisterer(registry))
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	// The port that a request names is the client's to choose, and there would be series for each.
	bounded := metric.NewView(metric.Instrument{Name: "http.server.*"},
		metric.Stream{AttributeFilter: attribute.NewDenyKeysFilter(semconv.ServerPortKey)})
	meters := []metric.Option{metric.WithResource(who), metric.WithReader(scraped), metric.WithView(bounded)}
	t := &telemetry{metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}

	if to != nowhere {
		spans, measurements, err := newExporters(ctx, to, stdout)
		if err != nil {
			return nil, fmt.Errorf("telemetry: %w", err)
		}
		meters = append(meters, metric.WithReader(metric.NewPeriodicReader(measurements)))
		tracers := trace.NewTracerProvider(trace.WithResource(who), trace.WithBatcher(spans))
		t.ends = append(t.ends, tracers.Shutdown)
		otel.SetTracerProvider(tracers)
		// A request that has a trace context continues its trace.
		otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	}
	provider := metric.NewMeterProvider(meters...)
	t.ends = append(t.ends, provider.Shutdown)
	otel.SetMeterProvider(provider)
	return t, nil
}

// newExporters returns what sends traces and metrics. To stdout they go as lines of JSON; those of OTLP
// speak HTTP, and read OTEL_EXPORTER_OTLP_ENDPOINT and its like.
func newExporters(ctx context.Context, to destination, stdout io.Writer) (trace.SpanExporter, metric.Exporter, error) {
	if to == toStdout {
		spans, err := stdouttrace.New(stdouttrace.WithWriter(stdout))
		if err != nil {
			return nil, nil, err
		}
		measurements, err := stdoutmetric.New(stdoutmetric.WithWriter(stdout))
		return spans, measurements, err
	}
	spans, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, nil, err
	}
	measurements, err := otlpmetrichttp.New(ctx)
	return spans, measurements, err
}

// stop sends what has not been sent yet. It returns within twice flushTimeout, and what could not be sent
// by then is lost.
func (t *telemetry) stop() error {
	var errs []error
	for _, end := range t.ends {
		ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
		errs = append(errs, end(ctx))
		cancel()
	}
	return errors.Join(errs...)
}

// traced is middleware: each request to the API has a server span, under which the mechanisms have
// theirs. Requests of the page for its counters, which are frequent, and of metrics have none.
func traced() gin.HandlerFunc {
	return otelgin.Middleware(serviceName, otelgin.WithFilter(func(r *http.Request) bool {
		return strings.HasPrefix(r.URL.Path, "/api/") && r.URL.Path != "/api/stats" && !strings.HasSuffix(r.URL.Path, "/places")
	}))
}
