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

// config is comparable: holds pass only between callers with equal ones.
type config struct {
	ttl     time.Duration
	renew   bool
	maxHold time.Duration
	delay   time.Duration
	fair    bool
	holder  string

	// Of what New is given alone; With leaves them as they are.
	providers telemetry.Providers
	logger    *slog.Logger
}

// maxMeta is how many bytes a holder may say of itself.
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
		return fmt.Errorf("a longest hold of %v is neither 0 nor at least 1ms", c.maxHold)
	case c.delay != 0 && (c.delay < time.Millisecond || c.delay > time.Hour):
		return fmt.Errorf("a lock-delay of %v is neither 0 nor between 1ms and 1h", c.delay)
	case len(c.holder) > maxMeta:
		return fmt.Errorf("a holder of %d bytes, at most %d are allowed", len(c.holder), maxMeta)
	}
	return nil
}

// shared is what Lockers of one name have to agree on.
func (c config) shared() namesake.Settings {
	return namesake.Settings{Text: fmt.Sprintf("ttl=%v renewal=%t max_hold=%v lock_delay=%v fair=%t", c.ttl, c.renew, c.maxHold, c.delay, c.fair)}
}

// WithTTL sets for how long a process may be silent before others may have its locks: 30 s if not
// set, 10 ms to 24 h. It is renewed at a third of it while a lock is held, so it need not be as long
// as the work.
func WithTTL(d time.Duration) Option { return optionFunc(func(c *config) { c.ttl = d }) }

// WithoutRenewal has a lease end after its TTL, whatever its holder does.
func WithoutRenewal() Option { return optionFunc(func(c *config) { c.renew = false }) }

// WithMaxHold ends the context of a lease, with [ErrExpired], when it has been held for this long,
// and stops its renewal: what hangs shall not keep a lock for ever. Without it, or with zero, a lease
// is renewed until it is released. Less than 1 ms is an error.
func WithMaxHold(d time.Duration) Option { return optionFunc(func(c *config) { c.maxHold = d }) }

// WithLockDelay keeps a lock closed for this long after a lease of it expired without being released:
// time for a holder that may still be writing. 1 ms to 1 h, or zero, as if not set. A release needs no
// delay.
func WithLockDelay(d time.Duration) Option { return optionFunc(func(c *config) { c.delay = d }) }

// WithFair grants the lock strictly in the order in which callers have queued, across all processes.
// It costs a round trip and a push for every hand-over: without it, a process hands a lock on among
// its own callers for at most 16 times or 50 ms before others have their turn.
func WithFair() Option { return optionFunc(func(c *config) { c.fair = true }) }

// WithHolder sets what others are told of the holder: host name and process id if not set, at most
// 256 bytes. Those who wait for it have it in their span, too.
func WithHolder(meta string) Option { return optionFunc(func(c *config) { c.holder = meta }) }

// WithMeterProvider sets where the metrics of a Locker and its variants go: to the global provider if not
// set, or nil. It is for [New]; With ignores it.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) { c.providers.Meter = p })
}

// WithTracerProvider sets where the spans of a Locker and its variants go: to the global provider if not
// set, or nil. It is for [New]; With ignores it.
func WithTracerProvider(p trace.TracerProvider) Option {
	return optionFunc(func(c *config) { c.providers.Tracer = p })
}

// WithLogger sets where a Locker and its variants say that leases cannot be renewed, or are lost:
// slog.Default() if not set. It is for [New]; With ignores it. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}
