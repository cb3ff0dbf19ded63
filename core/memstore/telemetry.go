package memstore

import (
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/memstore"

// WithMeterProvider sets the provider of the store's metrics. The default, also for nil, is the
// global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// observeSizes registers the numbers of entries as metrics, until the returned function is called.
// Expired entries count until they are swept.
func (s *Store) observeSizes(p telemetry.Providers) (end func()) {
	return telemetry.Sizes(p, ScopeName, map[string]func() int{
		"bucket":            s.buckets.count,
		"operation":         s.countRecords,
		"lease_request":     func() int { return int(s.leases.requests.Load()) },
		"latch_participant": s.latches.count,
		"task":              s.tasks.count,
		"document":          s.documents.count,
	})
}

func (s *Store) countRecords() (n int) {
	for i := range s.records {
		r := &s.records[i]
		r.mu.Lock()
		n += r.records.Len()
		r.mu.Unlock()
	}
	return n
}

func (l *latches) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.participants
}
