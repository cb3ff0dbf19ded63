package delay

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the instrumentation scope of a queue's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/delay"

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	lease      time.Duration
	attempts   int
	backoff    func(attempt int) time.Duration
	maxPayload int
	maxTasks   int
	buriedFor  time.Duration
	holder     string
	providers  telemetry.Providers
	logger     *slog.Logger
}

func defaults() config {
	return config{
		lease: 30 * time.Second, attempts: 10, backoff: usualBackoff, maxPayload: 64 << 10, maxTasks: 1 << 20,
		buriedFor: 30 * 24 * time.Hour, holder: naming.Process(), logger: slog.Default(),
	}
}

const maxHolder = 256 // bytes

func (c *config) check() error {
	switch {
	case c.lease < 10*time.Millisecond || c.lease > 24*time.Hour:
		return fmt.Errorf("delay: New: a lease of %v is not between 10ms and 24h", c.lease)
	case c.attempts < 1 || c.attempts > store.MaxTaskAttempts:
		return fmt.Errorf("delay: New: %d attempts are not between 1 and %d", c.attempts, store.MaxTaskAttempts)
	case c.maxPayload < 0 || c.maxPayload > maxPayload:
		return fmt.Errorf("delay: New: a maximum payload of %d bytes is not between 0 and %d", c.maxPayload, maxPayload)
	case c.maxTasks < 1:
		return fmt.Errorf("delay: New: a maximum of %d tasks is not positive", c.maxTasks)
	case c.buriedFor < time.Second || c.buriedFor > store.MaxTaskDelay:
		return fmt.Errorf("delay: New: buried for %v, which is not between 1s and 366 days", c.buriedFor)
	case len(c.holder) > maxHolder:
		return fmt.Errorf("delay: New: a holder of %d bytes, at most %d are allowed", len(c.holder), maxHolder)
	}
	return nil
}

// settings returns the settings that queues with the same name must have in common.
func (c *config) settings() namesake.Settings {
	return namesake.Settings{Text: fmt.Sprintf("lease=%v attempts=%d max_payload=%d max_tasks=%d buried_for=%v",
		c.lease, c.attempts, c.maxPayload, c.maxTasks, c.buriedFor)}
}

// WithLease sets the length of a running task's lease, which is renewed at a third of it: 30 s by
// default, 10 ms to 24 h. When a worker dies, its task begins again within the lease, or within 5 s
// if it had run for less than 1.7 s: the first lease is 5 s at most.
func WithLease(d time.Duration) Option { return func(c *config) { c.lease = d } }

// WithAttempts sets after how many attempts a task is buried: 10 by default. An attempt counts from
// its take, so that one whose worker dies counts, too.
func WithAttempts(n int) Option { return func(c *config) { c.attempts = n } }

// WithBackoff sets how long a task waits after an attempt that has failed, by the attempt's number,
// from 1: 1 s by default, and twice as long after each, 5 min at most, varied by up to 20 %. A time
// below zero counts as zero, and one above 366 days as that. f may be called concurrently. If it
// panics, the task waits for the default time, and Run panics as for its function.
func WithBackoff(f func(attempt int) time.Duration) Option {
	return func(c *config) {
		if f != nil {
			c.backoff = f
		}
	}
}

const longestBackoff = 5 * time.Minute

func usualBackoff(attempt int) time.Duration {
	d := longestBackoff
	if attempt < 10 {
		d = min(time.Second<<(attempt-1), d)
	}
	return d*4/5 + rand.N(d*2/5) //nolint:gosec // spreads attempts; no secret
}

// maxPayload leaves room for the span of a put.
const maxPayload = store.MaxTaskPayload - spanBytes

// WithMaxPayload sets the maximum size of a payload in bytes: 64 KiB by default, at most 1 MiB less
// 25 bytes. Put refuses a larger one. Workers wait for payloads: keep large data elsewhere, under
// the task's key.
func WithMaxPayload(bytes int) Option { return func(c *config) { c.maxPayload = bytes } }

// WithMaxTasks sets the maximum number of tasks of the queue, with buried ones: 1,048,576 by
// default. Beyond it, a put of a key without a task is refused with [ErrFull].
func WithMaxTasks(n int) Option { return func(c *config) { c.maxTasks = n } }

// WithBuriedFor sets how long a buried task is kept: 30 days by default, 1 s to 366 days.
func WithBuriedFor(d time.Duration) Option { return func(c *config) { c.buriedFor = d } }

// WithHolder sets the Holder of a [State], which describes the process of a running task: at most
// 256 bytes. The default is the host's name and the process ID.
func WithHolder(text string) Option { return func(c *config) { c.holder = text } }

// WithMeterProvider sets the provider of the queue's metrics. The default, also for nil, is the
// global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// WithTracerProvider sets the provider of the queue's spans. The default, also for nil, is the
// global one.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.providers.Tracer = p }
}

// WithLogger sets the logger, slog.Default() by default. The queue logs tasks that are buried or
// lost, takes and renewals that fail, and damaged tasks. It never logs keys and payloads; it logs
// the [Task.ID] of a buried task, and its reason.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = cmp.Or(l, c.logger) }
}
