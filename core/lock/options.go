package lock

import (
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the instrumentation scope of a Locker's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/lock"

// Option is an optional setting of [New] and [Locker.With].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// config is comparable: holds are handed on only between callers with equal ones.
type config struct {
	ttl     time.Duration
	renew   bool
	maxHold time.Duration
	delay   time.Duration
	fair    bool
	holder  string

	// Of New alone.
	providers telemetry.Providers
	logger    *slog.Logger
	ofNew     bool // one of them was given
}

// maxMeta is the maximum size of a holder's label in bytes.
const maxMeta = 256

func defaults() config {
	return config{ttl: 30 * time.Second, renew: true, holder: naming.Process(), logger: slog.Default()}
}

func (c config) with(opts []Option) config {
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	return c
}

func (c config) check() error {
	switch {
	case c.ttl < 10*time.Millisecond || c.ttl > 24*time.Hour:
		return fmt.Errorf("a lease of %v is not between 10ms and 24h", c.ttl)
	case c.maxHold != 0 && c.maxHold < time.Millisecond:
		return fmt.Errorf("a maximum hold of %v is neither 0 nor at least 1ms", c.maxHold)
	case c.delay != 0 && (c.delay < time.Millisecond || c.delay > time.Hour):
		return fmt.Errorf("a lock-delay of %v is neither 0 nor between 1ms and 1h", c.delay)
	case len(c.holder) > maxMeta:
		return fmt.Errorf("a holder label of %d bytes, at most %d are allowed", len(c.holder), maxMeta)
	}
	return nil
}

// settings returns the settings that Lockers with the same name must have in common.
func (c config) settings() namesake.Settings {
	return namesake.Settings{Text: fmt.Sprintf("ttl=%v renewal=%t max_hold=%v lock_delay=%v fair=%t", c.ttl, c.renew, c.maxHold, c.delay, c.fair)}
}

// WithTTL sets the length of a lease, which is how long a lock outlives the last renewal of its
// holder: 30 s by default, 10 ms to 24 h. It is renewed at a third of it while a lock is held, so
// it can be shorter than the work.
func WithTTL(d time.Duration) Option { return optionFunc(func(c *config) { c.ttl = d }) }

// WithoutRenewal ends a lease after its TTL, whether it was released or not.
func WithoutRenewal() Option { return optionFunc(func(c *config) { c.renew = false }) }

// WithMaxHold ends the context of a lease with [ErrExpired] after this time, and stops its renewal,
// so that a holder that hangs does not keep a lock forever. Without it, or with zero, a lease is
// renewed until it is released. Less than 1 ms is an error.
func WithMaxHold(d time.Duration) Option { return optionFunc(func(c *config) { c.maxHold = d }) }

// WithLockDelay keeps a lock closed for this long after a lease of it expired unreleased: time for
// a holder that may still be writing. 1 ms to 1 h, or zero, the default. A released lock has no
// delay.
func WithLockDelay(d time.Duration) Option { return optionFunc(func(c *config) { c.delay = d }) }

// WithFair grants the lock strictly in the order in which callers have queued, across all
// processes. Every hand-off then costs a round trip and a push. Without it, a process hands a lock
// on among its own waiters up to 16 times or for 50 ms before other processes get it.
func WithFair() Option { return optionFunc(func(c *config) { c.fair = true }) }

// WithHolder sets the label of the holder that others get: host name and process ID by default, at
// most 256 bytes. It is also on the spans of waiters.
func WithHolder(meta string) Option { return optionFunc(func(c *config) { c.holder = meta }) }

// WithMeterProvider sets the provider of the metrics of a Locker and its variants. The default,
// also for nil, is the global one. With refuses it.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) { c.providers.Meter, c.ofNew = p, true })
}

// WithTracerProvider sets the provider of the spans of a Locker and its variants. The default, also
// for nil, is the global one. With refuses it.
func WithTracerProvider(p trace.TracerProvider) Option {
	return optionFunc(func(c *config) { c.providers.Tracer, c.ofNew = p, true })
}

// WithLogger sets the logger of a Locker and its variants for failing renewals and lost leases:
// slog.Default() by default. With refuses it. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		c.ofNew = true
		if l != nil {
			c.logger = l
		}
	})
}
