package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the instrumentation scope of a guard's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/guard"

// Option is an optional setting of [New].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	lease     time.Duration
	retention time.Duration
	maxResult int
	rerun     bool
	secret    []byte
	providers telemetry.Providers
	logger    *slog.Logger
}

func defaults() config {
	return config{lease: 30 * time.Second, retention: 24 * time.Hour, maxResult: 64 << 10, logger: slog.Default()}
}

func (c config) check() error {
	switch {
	case c.lease < 10*time.Millisecond || c.lease > 24*time.Hour:
		return fmt.Errorf("guard: New: a lease of %v is not between 10ms and 24h", c.lease)
	case c.retention < time.Second || c.retention > 366*24*time.Hour:
		return fmt.Errorf("guard: New: a retention of %v is not between 1s and 366 days", c.retention)
	case c.retention < c.lease:
		return fmt.Errorf("guard: New: a retention of %v is shorter than the lease of %v", c.retention, c.lease)
	case c.maxResult < 0 || c.maxResult > 16<<20:
		return fmt.Errorf("guard: New: a largest result of %d bytes is not between 0 and 16 MiB", c.maxResult)
	}
	return nil
}

// WithLease sets for how long a process may be silent before its attempt counts as dead: 30 s if
// not set, 10 ms to 24 h. It is renewed at a third of it while the attempt runs, so it need not be
// as long as an attempt takes.
func WithLease(d time.Duration) Option { return optionFunc(func(c *config) { c.lease = d }) }

// WithRetention sets for how long a record is kept, counted from its last change: 24 h if not set,
// 1 s to 366 days and no less than the lease. After it, the same key is a new operation.
func WithRetention(d time.Duration) Option { return optionFunc(func(c *config) { c.retention = d }) }

// WithMaxResult sets the largest Data of a [Result] that is kept, in bytes: 64 KiB if not set, at
// most 16 MiB. A larger one is settled as not retained: the operation is not run again, but its
// result cannot be told.
func WithMaxResult(bytes int) Option { return optionFunc(func(c *config) { c.maxResult = bytes }) }

// WithRerun says that the operation may be run again after an attempt of unknown outcome: because
// it has no effects, or because what it calls recognises the repeat. Without it such an operation
// answers [ErrOutcomeUnknown] until its record's retention ends.
func WithRerun() Option { return optionFunc(func(c *config) { c.rerun = true }) }

// WithSecret has the names of records made by HMAC under this secret, so that nobody who reads the
// store can test guesses of keys against it. All processes of a guard need the same secret, and
// changing it forgets every record.
func WithSecret(secret []byte) Option {
	return optionFunc(func(c *config) { c.secret = append([]byte(nil), secret...) })
}

// WithMeterProvider sets where the guard's metrics go: to the global provider if not set, or nil.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) { c.providers.Meter = p })
}

// WithTracerProvider sets where the guard's spans go: to the global provider if not set, or nil.
func WithTracerProvider(p trace.TracerProvider) Option {
	return optionFunc(func(c *config) { c.providers.Tracer = p })
}

// WithLogger sets where the guard says that attempts cannot be renewed, or are lost, and that a record is
// damaged: slog.Default() if not set. It never logs keys or scopes.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

var errNilStore = errors.New("guard: New: nil store")
