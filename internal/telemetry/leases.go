package telemetry

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

const (
	mechanismKey = attribute.Key("lockkeeper.mechanism")
	leaseEndKey  = attribute.Key("lockkeeper.lease.end")
)

// lostEvent is the event on the span of a lease's request when the lease is lost.
const lostEvent = "lockkeeper.lease.lost"

// Leases records failing renewals and lost leases of a mechanism. An outage is logged when it
// begins and when it ends, not with each renewal.
type Leases struct {
	failures metric.Int64Counter
	add      []metric.AddOption
	losses   metric.Int64Counter
	counter  *live.Counter
	ends     map[HoldEnd]attribute.Set
	adds     map[HoldEnd][]metric.AddOption
	logger   *slog.Logger
	failing  atomic.Bool
}

// NewLeases returns the telemetry of the leases of the mechanism with this name.
func NewLeases(p Providers, logger *slog.Logger, scope, policy, mechanism string, counter *live.Counter) *Leases {
	meter := p.meter(scope)
	both := []attribute.KeyValue{policyKey.String(policy), mechanismKey.String(mechanism)}
	l := &Leases{
		failures: must(meter.Int64Counter("lockkeeper.renewal.failures",
			metric.WithDescription("How many renewals of leases failed. Each is tried again while there is time."), metric.WithUnit("{renewal}"))),
		add: []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(both...))},
		losses: must(meter.Int64Counter("lockkeeper.lease.losses",
			metric.WithDescription("How many leases others may have had while their holders believed in them."), metric.WithUnit("{lease}"))),
		counter: counter,
		ends:    make(map[HoldEnd]attribute.Set),
		adds:    make(map[HoldEnd][]metric.AddOption),
		logger:  logger.With("mechanism", mechanism, "policy", policy),
	}
	for _, how := range []HoldEnd{Lost, Expired} {
		l.ends[how] = attribute.NewSet(append(both[:2:2], leaseEndKey.String(string(how)))...)
		l.adds[how] = []metric.AddOption{metric.WithAttributeSet(l.ends[how])}
	}
	return l
}

// Renewed records a store's reply to a batch of renewals.
func (l *Leases) Renewed(ctx context.Context, renewed []bool, of int, err error) {
	failed := of
	for _, ok := range renewed {
		if ok {
			failed--
		}
	}
	if err == nil { // also if there was nothing to renew
		if failed < of && l.failing.Swap(false) {
			l.logger.InfoContext(ctx, "lockkeeper: leases are renewed again")
		}
		return
	}
	l.counter.Add(live.Unrenewed, failed)
	if l.failures.Enabled(ctx) {
		l.failures.Add(ctx, int64(failed), l.add...)
	}
	if !l.failing.Swap(true) {
		l.logger.WarnContext(ctx, "lockkeeper: lease renewals fail; leases end unless one succeeds", "leases", failed, "error.type", ErrorType(err))
	}
}

// Lost records a lease that was lost before its holder released it. It is called once, with the
// context of the lease's request, whose span gets an event if it has not ended.
func (l *Leases) Lost(ctx context.Context, how HoldEnd) {
	l.counter.Add(live.Lost, 1)
	if l.losses.Enabled(ctx) {
		l.losses.Add(ctx, 1, l.adds[how]...)
	}
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		ends := l.ends[how]
		span.AddEvent(lostEvent, trace.WithAttributes(ends.ToSlice()...))
	}
	l.logger.WarnContext(ctx, "lockkeeper: a lease was lost while it was held", "end", string(how))
}
