package guard

import (
	"cmp"
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
type Option func(*config)

type config struct {
	ttl       time.Duration
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
		ttl: 30 * time.Second, retention: 24 * time.Hour, maxResult: 64 << 10,
		maxPerScope: 10_000, maxScopeBytes: 16 << 20, logger: slog.Default(),
	}
}

func (c config) check() error {
	switch {
	case c.ttl < 10*time.Millisecond || c.ttl > 24*time.Hour:
		return fmt.Errorf("guard: New: a lease of %v is not between 10ms and 24h", c.ttl)
	case c.retention < time.Second || c.retention > 366*24*time.Hour:
		return fmt.Errorf("guard: New: a retention of %v is not between 1s and 366 days", c.retention)
	case c.retention < c.ttl:
		return fmt.Errorf("guard: New: a retention of %v is shorter than the lease of %v", c.retention, c.ttl)
	case c.maxResult < 0 || c.maxResult > 16<<20:
		return fmt.Errorf("guard: New: a maximum result of %d bytes is not between 0 and 16 MiB", c.maxResult)
	case c.maxPerScope < 1 || c.maxPerScope > 1<<20:
		return fmt.Errorf("guard: New: a maximum of %d records per scope is not between 1 and 1,048,576", c.maxPerScope)
	case c.maxScopeBytes < 1 || c.maxScopeBytes > 1<<30:
		return fmt.Errorf("guard: New: a maximum of %d bytes of results per scope is not between 1 and 1 GiB", c.maxScopeBytes)
	}
	return nil
}

// settings returns the settings that guards with the same name must have in common.
func (c config) settings() namesake.Settings {
	text := fmt.Sprintf("lease=%v retention=%v max_result=%d rerun=%t secret=%t", c.ttl, c.retention, c.maxResult, c.rerun, len(c.secret) > 0)
	return namesake.Settings{Text: text, Secret: string(c.secret)}
}

// WithTTL sets the length of an attempt's lease, which is how long after its last renewal an
// attempt counts as alive: 30 s by default, 10 ms to 24 h. It is renewed at a third of it while the
// attempt runs, so it can be shorter than the attempt.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithRetention sets how long a record is kept after its last change: 24 h by default, 1 s to 366
// days and no less than the lease. After it, the same key is a new operation.
func WithRetention(d time.Duration) Option { return func(c *config) { c.retention = d } }

// WithMaxResult sets the maximum size of the Data of a [Result], in bytes: 64 KiB by default, at
// most 16 MiB. A larger one is settled as not retained: the operation is not run again, but its
// result is not available.
func WithMaxResult(bytes int) Option { return func(c *config) { c.maxResult = bytes } }

// WithMaxPerScope limits the records of a scope at a time: 10,000 by default, 1 to 1,048,576. A new
// operation beyond it is refused with a *[ScopeFullError], even if the store has room, so that one
// subject cannot use the room of others: with records of about half a KiB, a scope takes 5 MiB, and
// 50 scopes as much as a memory store has by default. Operations that have a record are not
// affected.
//
// A scope that runs more than 10,000 operations in a retention, such as a service that acts for
// many users, needs a larger limit or a shorter retention. Operations without a scope are not
// limited.
func WithMaxPerScope(records int) Option { return func(c *config) { c.maxPerScope = records } }

// WithMaxScopeBytes limits the Data of a scope's results at a time, in bytes: 16 MiB by default, 1
// byte to 1 GiB. An operation beyond it runs, and is settled as not retained: later calls of Begin
// return a *[NotRetainedError], and the operation does not run again. Without a scope there is no
// limit.
func WithMaxScopeBytes(bytes int) Option { return func(c *config) { c.maxScopeBytes = bytes } }

// WithRerun allows the operation to run again after an attempt with an unknown outcome: because it
// has no effects, or because what it calls recognises repeats. Without it, Begin returns
// [ErrOutcomeUnknown] for such an operation until its record expires.
func WithRerun() Option { return func(c *config) { c.rerun = true } }

// WithSecret derives the names of records by HMAC with this secret, so that a reader of the store
// cannot test guesses of keys. All processes of a guard need the same secret. Changing it makes all
// existing records unreachable.
func WithSecret(secret []byte) Option {
	return func(c *config) { c.secret = append([]byte(nil), secret...) }
}

// WithMeterProvider sets the provider of the guard's metrics. The default, also for nil, is the
// global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// WithTracerProvider sets the provider of the guard's spans. The default, also for nil, is the
// global one.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.providers.Tracer = p }
}

// WithLogger sets the logger for failing renewals, lost attempts, unconfirmed completions and
// damaged records: slog.Default() by default. Keys and scopes are never logged.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = cmp.Or(l, c.logger) }
}
