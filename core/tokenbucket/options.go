package tokenbucket

import (
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the instrumentation scope of a limiter's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/tokenbucket"

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	providers telemetry.Providers
	parent    *Limiter
	within    bool // a parent was given, which may be nil

	candidate  Plan
	candidates bool // a candidate was given
	block      int64
	blocks     bool // a size of blocks was given
}

// WithMeterProvider sets where the limiter's metrics go: to the global provider if not set, or nil.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// WithTracerProvider sets where the spans of waiters go: to the global provider if not
// set, or nil.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.providers.Tracer = p }
}
