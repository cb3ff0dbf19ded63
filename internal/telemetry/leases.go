package telemetry

import (
	"context"
	"log/slog"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const mechanismKey = attribute.Key("lockkeeper.mechanism")

// Leases tells of what becomes of a mechanism's leases: of renewals that fail, and of leases that are lost.
// An outage is logged when it begins and when it is over, not with each renewal.
type Leases struct {
	failures metric.Int64Counter
	add      []metric.AddOption
	logger   *slog.Logger
	failing  atomic.Bool
}

// NewLeases returns that of the mechanism with this name.
func NewLeases(p Providers, logger *slog.Logger, scope, policy, mechanism string) *Leases {
	return &Leases{
		failures: must(p.meter(scope).Int64Counter("lockkeeper.renewal.failures",
			metric.WithDescription("How many renewals of leases failed. Each is tried again while there is time."), metric.WithUnit("{renewal}"))),
		add:    []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(policyKey.String(policy), mechanismKey.String(mechanism)))},
		logger: logger.With("mechanism", mechanism, "policy", policy),
	}
}

// Renewed is told what a store said of a batch of renewals.
func (l *Leases) Renewed(ctx context.Context, renewed []bool, of int, err error) {
	if err == nil {
		if l.failing.Swap(false) {
			l.logger.InfoContext(ctx, "lockkeeper: leases are renewed again")
		}
		return
	}
	failed := of
	for _, ok := range renewed {
		if ok {
			failed--
		}
	}
	if l.failures.Enabled(ctx) {
		l.failures.Add(ctx, int64(failed), l.add...)
	}
	if !l.failing.Swap(true) {
		l.logger.WarnContext(ctx, "lockkeeper: leases cannot be renewed, and end if that goes on", "leases", failed, "error.type", ErrorType(err))
	}
}

// Lost is told of a lease that others may have had while its holder believed in it.
func (l *Leases) Lost(cause error) {
	l.logger.Warn("lockkeeper: a lease was lost while it was held", "cause", cause.Error())
}
