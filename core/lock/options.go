package lock

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
)

// ScopeName is the instrumentation scope of a Locker's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/lock"

// Option is an optional setting of [New] and [Locker.With].
type Option func(*lease.Config)

// settings returns the settings that Lockers with the same name must have in common.
func settings(c *lease.Config) namesake.Settings {
	return namesake.Settings{Text: fmt.Sprintf("%s lock_delay=%v fair=%t", c.Text(), c.Delay, c.Fair)}
}

// WithTTL sets the length of a lease, which is how long a lock outlives the last renewal of its
// holder: 30 s by default, 10 ms to 24 h. It is renewed at a third of it while a lock is held, so
// it can be shorter than the work.
func WithTTL(d time.Duration) Option { return func(c *lease.Config) { c.TTL = d } }

// WithoutRenewal ends a lease after its TTL, whether it was released or not.
func WithoutRenewal() Option { return func(c *lease.Config) { c.Renew = false } }

// WithMaxHold ends the context of a lease with [ErrExpired] after this time, and stops its renewal,
// so that a holder that hangs does not keep a lock forever. Without it, or with zero, a lease is
// renewed until it is released. Less than 1 ms is an error.
func WithMaxHold(d time.Duration) Option { return func(c *lease.Config) { c.MaxHold = d } }

// WithLockDelay keeps a lock closed for this long after a lease of it expired unreleased, since the
// holder may still be writing: 1 ms to 1 h, or zero, the default. A released lock has no delay.
func WithLockDelay(d time.Duration) Option { return func(c *lease.Config) { c.Delay = d } }

// WithFair grants the lock strictly in the order in which callers have queued, across all
// processes that are alive. Every caller then has its own place in the store. Without it, a process
// hands a lock on among its own waiters up to 16 times or for 50 ms before other processes get it.
func WithFair() Option { return func(c *lease.Config) { c.Fair = true } }

// WithHolder sets the label of the holder that others get: host name and process ID by default, at
// most 256 bytes. It is also on the spans of waiters.
func WithHolder(label string) Option { return func(c *lease.Config) { c.Holder = label } }

// WithMeterProvider sets the provider of the metrics of a Locker and its variants. The default,
// also for nil, is the global one. With refuses it.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *lease.Config) { c.Providers.Meter, c.OfNew = p, true }
}

// WithTracerProvider sets the provider of the spans of a Locker and its variants. The default, also
// for nil, is the global one. With refuses it.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *lease.Config) { c.Providers.Tracer, c.OfNew = p, true }
}

// WithLogger sets the logger of a Locker and its variants for failing renewals and lost leases:
// slog.Default() by default. With refuses it. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return func(c *lease.Config) { c.Logger, c.OfNew = cmp.Or(l, c.Logger), true }
}
