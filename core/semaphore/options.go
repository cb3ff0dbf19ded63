package semaphore

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

// ScopeName is the instrumentation scope of a Semaphore's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/semaphore"

// Option is an optional setting of [New] and [Semaphore.With].
type Option func(*lease.Config)

// settings returns the settings that Semaphores with the same name must have in common.
func settings(c *lease.Config, capacity int) namesake.Settings {
	adapts := ""
	if a := c.Adaptive; a != nil {
		adapts = fmt.Sprintf(" target=%v floor=%d ceiling=%d", a.Target, a.Floor, a.Ceiling)
	}
	return namesake.Settings{Text: fmt.Sprintf("capacity=%d capacity_func=%t %s max_waiting=%d%s",
		capacity, c.CapacityOf != nil, c.Text(), c.MaxWaiting, adapts)}
}

// WithTTL sets the length of a permit's lease, which is how long a permit outlives the last renewal
// of its holder: 30 s by default, 10 ms to 24 h. It is renewed at a third of it while a permit is
// held, so it can be shorter than the work.
func WithTTL(d time.Duration) Option { return func(c *lease.Config) { c.TTL = d } }

// WithoutRenewal ends a permit after its TTL, whether it was released or not.
func WithoutRenewal() Option { return func(c *lease.Config) { c.Renew = false } }

// WithMaxHold ends the context of a permit with [ErrExpired] after this time, and stops its
// renewal, so that a holder that hangs does not keep a permit forever. Without it, or with zero, a
// permit is renewed until it is released. Less than 1 ms is an error.
func WithMaxHold(d time.Duration) Option { return func(c *lease.Config) { c.MaxHold = d } }

// WithHolder sets the label of the holder that others get: host name and process ID by default, at
// most 256 bytes.
func WithHolder(label string) Option { return func(c *lease.Config) { c.Holder = label } }

// WithReserve leaves n of the capacity to requests with a smaller reserve: a tier. A request with a
// reserve waits while less than n would be left. Requests with a smaller reserve are granted first.
// Keep the least important work from filling a partner's twenty connections:
//
//	critical, err := semaphore.New(store, "partner", 20)       // may use all of them
//	standard, err := critical.With(semaphore.WithReserve(4))   // 16, and after the critical ones
//	batch, err := critical.With(semaphore.WithReserve(12))     // 8, and after both
//
// The reserve applies when the store grants. A grant in flight to a caller that has left goes to
// the next caller of its process and tier.
//
// The default is 0. A request that never fits, since its weight exceeds the capacity less the
// reserve, returns [ErrInvalidWeight].
func WithReserve(n int) Option {
	return func(c *lease.Config) { withReserve(c, n, 0); c.ReserveGiven = true }
}

// WithReserveShare is [WithReserve] for a part of the capacity, at least 0 and less than 1: the
// reserve is f times the capacity that a request uses, so it follows [Semaphore.SetCapacity] and
// [WithCapacityFunc], also for waiting requests.
//
//	batch, err := critical.With(semaphore.WithReserveShare(0.6)) // 8 of 20, 12 of 30
//
// The reserve is rounded down. A product less than a millionth below an integer is that integer, so
// 0.29 of 100 is 29, which floating point makes 28.999…. At least one permit is left to the tier:
// of a capacity of 1, every reserve is 0. Of a small capacity, a share may round to 0, too, and
// then there is no tier: 0.3 of 3 leaves nothing to others.
//
// While processes differ in their capacity, they differ in the reserve of a tier. Each request is
// granted by its own, and those with a smaller one come first.
//
// [WithReserve] in the same call is an error. In a call of With, both replace what s had, also its
// tier ([Semaphore.Tier]).
func WithReserveShare(f float64) Option {
	return func(c *lease.Config) { withReserve(c, 0, f); c.ShareGiven = true }
}

// withReserve replaces what decided about the reserve.
func withReserve(c *lease.Config, n int, share float64) {
	c.Reserve, c.ReserveShare, c.Tier, c.Tiered = n, share, 0, nil
}

// WithMaxWaiting limits the queue: a request that would have to wait fails with an error that
// matches [ErrQueueFull] if n already wait for the same key in this process, or n requests in the
// store: 1,024 by default. With zero there is no limit. Callers of other processes count only by
// their places in the store, which are 16 for each weight at most.
//
// Choose n so that the last in the queue gets its permit within the time that it may wait: a longer
// queue costs memory and connections, and its end is refused all the same.
func WithMaxWaiting(n int) Option { return func(c *lease.Config) { c.MaxWaiting = n } }

// WithCapacityFunc sets the capacity of each key: 1 to store.MaxCapacity, or 0 for that of the
// Semaphore, [Semaphore.SetCapacities] included. With any other value the call fails with
// [ErrInvalidCapacity]. f is called for every request, and again for waiting ones on
// [Semaphore.SetCapacity]; it should be quick, and return the same value in every process.
func WithCapacityFunc(f func(key string) int) Option {
	return func(c *lease.Config) { c.CapacityOf = f }
}

// WithMeterProvider sets the provider of the metrics of a Semaphore and its variants. The default,
// also for nil, is the global one. With refuses it.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *lease.Config) { c.Providers.Meter, c.OfNew = p, true }
}

// WithTracerProvider sets the provider of the spans of a Semaphore and its variants. The default,
// also for nil, is the global one. With refuses it.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *lease.Config) { c.Providers.Tracer, c.OfNew = p, true }
}

// WithLogger sets the logger of a Semaphore and its variants for failing renewals and lost permits:
// slog.Default() by default. With refuses it. Keys are never logged.
func WithLogger(l *slog.Logger) Option {
	return func(c *lease.Config) { c.Logger, c.OfNew = cmp.Or(l, c.Logger), true }
}
