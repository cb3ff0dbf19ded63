package semaphore

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

// ScopeName is the instrumentation scope of a Semaphore's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/semaphore"

// Option is an optional setting of [New] and [Semaphore.With].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// maxHolder is the largest label of a holder, in bytes.
const maxHolder = 256

type config struct {
	ttl        time.Duration
	renew      bool
	maxHold    time.Duration
	holder     string
	barging    bool
	maxWaiting int
	capacityOf func(key string) int

	// Of what New is given alone; With leaves them as they are.
	providers telemetry.Providers
	logger    *slog.Logger
}

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
	case len(c.holder) > maxHolder:
		return fmt.Errorf("a holder of %d bytes, at most %d are allowed", len(c.holder), maxHolder)
	case c.maxWaiting < 0:
		return fmt.Errorf("a queue of %d is negative", c.maxWaiting)
	}
	return nil
}

// shared is what Semaphores of one name have to agree on.
func (c config) shared(capacity int) namesake.Settings {
	return namesake.Settings{Text: fmt.Sprintf("capacity=%d capacity_func=%t ttl=%v renewal=%t max_hold=%v barging=%t max_waiting=%d",
		capacity, c.capacityOf != nil, c.ttl, c.renew, c.maxHold, c.barging, c.maxWaiting)}
}

// WithTTL sets for how long a process may be silent before its permits are given back: 30 s if not
// set, 10 ms to 24 h. It is renewed at a third of it while a permit is held, so it need not be as long
// as the work.
func WithTTL(d time.Duration) Option { return optionFunc(func(c *config) { c.ttl = d }) }

// WithoutRenewal has a permit end after its TTL, whatever its holder does.
func WithoutRenewal() Option { return optionFunc(func(c *config) { c.renew = false }) }

// WithMaxHold ends the context of a permit, with [ErrExpired], when it has been held for this long,
// and stops its renewal: what hangs shall not keep a permit for ever. Without it, or with zero, a
// permit is renewed until it is released. Less than 1 ms is an error.
func WithMaxHold(d time.Duration) Option { return optionFunc(func(c *config) { c.maxHold = d }) }

// WithHolder sets what others are told of the holder: host name and process id if not set, at most
// 256 bytes.
func WithHolder(meta string) Option { return optionFunc(func(c *config) { c.holder = meta }) }

// WithBarging grants a request as soon as there is room for it, whoever waits: small ones use what is
// left beside a large one at the head of the queue. More is in use at a time, and a large request may
// wait for ever. Requests without it, of any process, keep their order among themselves.
func WithBarging() Option { return optionFunc(func(c *config) { c.barging = true }) }

// WithMaxWaiting bounds the queue: a request that would have to wait is refused, with an error that
// matches [ErrQueueFull], if n requests wait for the same key already, in all processes together.
// Without it, or with zero, there is no bound.
func WithMaxWaiting(n int) Option { return optionFunc(func(c *config) { c.maxWaiting = n }) }

// WithCapacityFunc sets the capacity of each key: 1 to [MaxCapacity], or 0 for that of the Semaphore.
// Anything else makes the call fail with [ErrInvalidCapacity]. f is called for every request, and again
// for those that wait when [Semaphore.SetCapacity] is called; it should be quick, and answer the same
// in every process.
func WithCapacityFunc(f func(key string) int) Option {
	return optionFunc(func(c *config) { c.capacityOf = f })
}

// WithMeterProvider sets where the metrics of a Semaphore and its variants go: to the global provider if
// not set, or nil. It is for [New]; With ignores it.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) { c.providers.Meter = p })
}

// WithTracerProvider sets where the spans of a Semaphore and its variants go: to the global provider if not
// set, or nil. It is for [New]; With ignores it.
func WithTracerProvider(p trace.TracerProvider) Option {
	return optionFunc(func(c *config) { c.providers.Tracer = p })
}

// WithLogger sets where a Semaphore and its variants say that permits cannot be renewed, or are lost:
// slog.Default() if not set. It is for [New]; With ignores it. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}
