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

	// Of New alone.
	providers telemetry.Providers
	logger    *slog.Logger
	ofNew     bool // one of them was given
}

func defaults() config {
	return config{
		ttl: 30 * time.Second, renew: true, maxWaiting: 1024, holder: naming.Process(), logger: slog.Default(),
	}
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
	case len(c.holder) > maxHolder:
		return fmt.Errorf("a holder label of %d bytes, at most %d are allowed", len(c.holder), maxHolder)
	case c.maxWaiting < 0:
		return fmt.Errorf("a maximum of %d waiters is negative", c.maxWaiting)
	}
	return nil
}

// settings returns the settings that Semaphores with the same name must have in common.
func (c config) settings(capacity int) namesake.Settings {
	return namesake.Settings{Text: fmt.Sprintf("capacity=%d capacity_func=%t ttl=%v renewal=%t max_hold=%v barging=%t max_waiting=%d",
		capacity, c.capacityOf != nil, c.ttl, c.renew, c.maxHold, c.barging, c.maxWaiting)}
}

// WithTTL sets the length of a permit's lease, which is how long a permit outlives the last renewal
// of its holder: 30 s by default, 10 ms to 24 h. It is renewed at a third of it while a permit is
// held, so it can be shorter than the work.
func WithTTL(d time.Duration) Option { return optionFunc(func(c *config) { c.ttl = d }) }

// WithoutRenewal ends a permit after its TTL, whether it was released or not.
func WithoutRenewal() Option { return optionFunc(func(c *config) { c.renew = false }) }

// WithMaxHold ends the context of a permit with [ErrExpired] after this time, and stops its
// renewal, so that a holder that hangs does not keep a permit forever. Without it, or with zero, a
// permit is renewed until it is released. Less than 1 ms is an error.
func WithMaxHold(d time.Duration) Option { return optionFunc(func(c *config) { c.maxHold = d }) }

// WithHolder sets the label of the holder that others get: host name and process ID by default, at
// most 256 bytes.
func WithHolder(meta string) Option { return optionFunc(func(c *config) { c.holder = meta }) }

// WithBarging grants a request as soon as there is room for it, even if others wait: small requests
// use the room beside a large one at the head of the queue. The capacity is used better, and a
// large request may starve. Requests without it, of any process, keep their order among themselves.
func WithBarging() Option { return optionFunc(func(c *config) { c.barging = true }) }

// WithMaxWaiting limits the queue: a request that would have to wait fails with an error that
// matches [ErrQueueFull] if n requests of all processes already wait for the same key: 1,024 by
// default. With zero there is no limit.
//
// The last in the queue should get its permit within the time that it may wait: a longer queue
// costs memory and connections, and its end is refused all the same.
func WithMaxWaiting(n int) Option { return optionFunc(func(c *config) { c.maxWaiting = n }) }

// WithCapacityFunc sets the capacity of each key: 1 to [MaxCapacity], or 0 for that of the
// Semaphore. With any other value the call fails with [ErrInvalidCapacity]. f is called for every
// request, and again for waiting ones on [Semaphore.SetCapacity]; it should be quick, and return
// the same value in every process.
func WithCapacityFunc(f func(key string) int) Option {
	return optionFunc(func(c *config) { c.capacityOf = f })
}

// WithMeterProvider sets the provider of the metrics of a Semaphore and its variants. The default,
// also for nil, is the global one. With refuses it.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) { c.providers.Meter, c.ofNew = p, true })
}

// WithTracerProvider sets the provider of the spans of a Semaphore and its variants. The default,
// also for nil, is the global one. With refuses it.
func WithTracerProvider(p trace.TracerProvider) Option {
	return optionFunc(func(c *config) { c.providers.Tracer, c.ofNew = p, true })
}

// WithLogger sets the logger of a Semaphore and its variants for failing renewals and lost permits:
// slog.Default() by default. With refuses it. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		c.ofNew = true
		if l != nil {
			c.logger = l
		}
	})
}
