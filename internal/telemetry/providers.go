// Package telemetry emits OpenTelemetry metrics and spans, and logs, of mechanisms and stores. It
// never emits keys, scopes or tokens. Its only names are the ones that the application gives its
// mechanisms. Attributes are computed only if they are recorded.
package telemetry

import (
	"cmp"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core"
)

// policyKey is the attribute of a mechanism's name, which the user chooses.
const policyKey = attribute.Key("lockkeeper.policy")

// errorTypeKey is from the semantic conventions.
const errorTypeKey = attribute.Key("error.type")

// Providers are the providers of telemetry. A nil one means the global one.
type Providers struct {
	Meter  metric.MeterProvider
	Tracer trace.TracerProvider
}

func (p Providers) meter(scope string) metric.Meter {
	return cmp.Or(p.Meter, otel.GetMeterProvider()).Meter(scope, metric.WithInstrumentationVersion(core.Version))
}

func (p Providers) tracer(scope string) trace.Tracer {
	return cmp.Or(p.Tracer, otel.GetTracerProvider()).Tracer(scope, trace.WithInstrumentationVersion(core.Version))
}

// must returns an instrument. With an error, the API still returns a usable one; the error goes to
// the global handler, since no program should fail because of its telemetry.
func must[T any](instrument T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return instrument
}
