package election

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the instrumentation scope of an Election's telemetry. A campaign has the span of its
// locker's request.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/election"

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	stepDown  time.Duration
	providers telemetry.Providers
	logger    *slog.Logger
}

func defaults() config { return config{stepDown: time.Second, logger: slog.Default()} }

func (c config) check() error {
	if c.stepDown < time.Millisecond || c.stepDown > time.Hour {
		return fmt.Errorf("a step-down of %v is not between 1ms and 1h", c.stepDown)
	}
	return nil
}

// WithStepDown sets how long [Election.Run] waits before it campaigns again after an error: 1 s by
// default, so that a process whose work fails leaves the role to another one; 1 ms to 1 h.
func WithStepDown(d time.Duration) Option { return func(c *config) { c.stepDown = d } }

// WithMeterProvider sets the provider of the metrics. The default, also for nil, is the global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// WithLogger sets the logger for terms that are lost, and for errors of the leader's work:
// slog.Default() by default. Roles are never logged.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = cmp.Or(l, c.logger) } }
