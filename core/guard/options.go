package guard

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
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

	maxPerScope, maxScopeBytes int

	rerun     bool
	secret    []byte
	providers telemetry.Providers
	logger    *slog.Logger
}

func defaults() config {
	return config{
		lease: 30 * time.Second, retention: 24 * time.Hour, maxResult: 64 << 10,
		maxPerScope: 10_000, maxScopeBytes: 16 << 20, logger: slog.Default(),
	}
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
	case c.maxPerScope < 1 || c.maxPerScope > 1<<20:
		return fmt.Errorf("guard: New: %d records for each scope are not between 1 and 1,048,576", c.maxPerScope)
	case c.maxScopeBytes < 1 || c.maxScopeBytes > 1<<30:
		return fmt.Errorf("guard: New: %d bytes of results for each scope are not between 1 and 1 GiB", c.maxScopeBytes)
	}
	return nil
}

// shared is what guards of one name have to agree on.
func (c config) shared() namesake.Settings {
	text := fmt.Sprintf("lease=%v retention=%v max_result=%d rerun=%t secret=%t", c.lease, c.retention, c.maxResult, c.rerun, len(c.secret) > 0)
	return namesake.Settings{Text: text, Secret: string(c.secret)}
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

// WithMaxPerScope bounds the records that a scope has at a time: 10,000 if not set, 1 to 1,048,576. A new
// operation beyond it is refused with a *[ScopeFullError], also when a store has room, so that one
// subject cannot take the room of the others: with records of about half a KiB, a scope takes 5 MiB, and
// 50 scopes as much as a memory store has by default. Operations that have a record are answered as ever.
//
// A scope that runs more than 10,000 operations in a retention, such as a service that acts for many
// users, needs a larger bound or a shorter retention. Operations without a scope are not bounded.
func WithMaxPerScope(records int) Option {
	return optionFunc(func(c *config) { c.maxPerScope = records })
}

// WithMaxScopeBytes bounds the Data of the results that a scope has at a time, in bytes: 16 MiB if not
// set, 1 byte to 1 GiB. An operation beyond it runs, and is settled as not retained: later calls of Begin
// return a *[NotRetainedError], and the operation does not run again. Without a scope there is no bound.
func WithMaxScopeBytes(bytes int) Option {
	return optionFunc(func(c *config) { c.maxScopeBytes = bytes })
}

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

// WithLogger sets where the guard logs that attempts cannot be renewed, or are lost, that completions are
// not confirmed, and that a record is damaged: slog.Default() if not set. It never logs keys or scopes.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

var errNilStore = errors.New("guard: New: nil store")
