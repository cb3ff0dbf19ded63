// Package telemetry says, to OpenTelemetry, what the mechanisms and the stores did. It never tells keys,
// scopes or tokens: the only names in it are those that the application gave its mechanisms. What it
// would say is computed only where somebody listens.
package telemetry

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Version is that of this module, as the scopes of its telemetry have it.
const Version = "0.1.0"

// policyKey has the name that the user gave a mechanism.
const policyKey = attribute.Key("lockkeeper.policy")

// errorTypeKey is that of the semantic conventions.
const errorTypeKey = attribute.Key("error.type")

// Providers are where telemetry goes: to the global ones, where nil.
type Providers struct {
	Meter  metric.MeterProvider
	Tracer trace.TracerProvider
}

func (p Providers) meter(scope string) metric.Meter {
	provider := p.Meter
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	return provider.Meter(scope, metric.WithInstrumentationVersion(Version))
}

func (p Providers) tracer(scope string) trace.Tracer {
	provider := p.Tracer
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return provider.Tracer(scope, trace.WithInstrumentationVersion(Version))
}

// must returns an instrument. The API gives one that works, or does nothing, beside any error; that goes
// to the global handler, since no program should fail for its telemetry.
func must[T any](instrument T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return instrument
}
