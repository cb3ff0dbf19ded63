package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

const (
	storeKey     = attribute.Key("lockkeeper.store")
	operationKey = attribute.Key("lockkeeper.store.operation")
	kindKey      = attribute.Key("lockkeeper.store.kind")
)

// Store is the telemetry of a store with a server.
type Store struct {
	calls      map[string]*Durations[callEnd]
	batches    metric.Int64Histogram
	batch      []metric.RecordOption
	reconnects metric.Int64Counter
	add        []metric.AddOption
	unregister func()
}

// callEnd is the outcome of a call. It is not an attribute of its own, since error.type shows it.
type callEnd string

const (
	callWorked callEnd = "worked"
	callFailed callEnd = "failed"
)

// NewStore returns the telemetry of a store of this kind, with these operations. open reports
// whether its breaker is open.
func NewStore(p Providers, scope, store string, operations []string, open func() bool, counter *live.Counter) *Store {
	meter := p.meter(scope)
	name := storeKey.String(store)
	set := attribute.NewSet(name)
	t := &Store{
		calls: make(map[string]*Durations[callEnd]),
		batches: must(meter.Int64Histogram("lockkeeper.store.batch.size",
			metric.WithDescription("How many steps a store sends together."), metric.WithUnit("{step}"),
			metric.WithExplicitBucketBoundaries(1, 2, 5, 10, 20, 50, 100))),
		batch: []metric.RecordOption{metric.WithAttributeSet(set)},
		reconnects: must(meter.Int64Counter("lockkeeper.store.inbox.reconnects",
			metric.WithDescription("How often the subscription on which a store hears of grants broke, and was renewed."),
			metric.WithUnit("{reconnect}"))),
		add: []metric.AddOption{metric.WithAttributeSet(set)},
	}
	histogram := must(meter.Float64Histogram("lockkeeper.store.operation.duration",
		metric.WithDescription("How long a store's calls take."), metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(StoreBounds...)))
	for _, operation := range operations {
		both := []attribute.KeyValue{name, operationKey.String(operation)}
		d := &Durations[callEnd]{histogram: histogram, counter: counter, ends: []end[callEnd]{newEnd(callWorked, "", live.Passed, both)}}
		for _, e := range ErrorTypes {
			d.ends = append(d.ends, newEnd(callFailed, e, live.Failed, both))
		}
		t.calls[operation] = d
	}
	// A sum, so that several stores in the process add up.
	breakers := must(meter.Int64ObservableUpDownCounter("lockkeeper.store.breaker.open",
		metric.WithDescription("How many stores of this process take their server to be down, and fail fast."), metric.WithUnit("{store}")))
	t.unregister = observe(meter, func(o metric.Observer) {
		down := int64(0)
		if open() {
			down = 1
		}
		o.ObserveInt64(breakers, down, metric.WithAttributeSet(set))
	}, breakers)
	return t
}

// observe calls f whenever the metrics are read, until the returned function is called.
func observe(meter metric.Meter, f func(metric.Observer), instruments ...metric.Observable) func() {
	registration := must(meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		f(o)
		return nil
	}, instruments...))
	return func() {
		if registration != nil {
			_ = registration.Unregister()
		}
	}
}

// Call is a call in flight.
type Call struct {
	durations *Durations[callEnd]
	began     time.Time
}

// Begin is called before an operation, and End after it.
func (t *Store) Begin(ctx context.Context, operation string) Call {
	d := t.calls[operation]
	return Call{d, d.Begin(ctx)}
}

// End records that an operation has ended.
func (c Call) End(ctx context.Context, err error) {
	name := callWorked
	if err != nil {
		name = callFailed
	}
	c.durations.End(ctx, c.began, name, err)
}

// Batch records how many steps were sent together.
func (t *Store) Batch(ctx context.Context, n int) {
	if t.batches.Enabled(ctx) {
		t.batches.Record(ctx, int64(n), t.batch...)
	}
}

// Reconnect counts a subscription that broke.
func (t *Store) Reconnect(ctx context.Context) { t.reconnects.Add(ctx, 1, t.add...) }

// Close stops observing the breaker.
func (t *Store) Close() { t.unregister() }

// Sizes observes the number of entries of each kind of a store in memory, until the returned
// function is called.
func Sizes(p Providers, scope string, sizes map[string]func() int) (end func()) {
	meter := p.meter(scope)
	entries := must(meter.Int64ObservableUpDownCounter("lockkeeper.store.entry.count",
		metric.WithDescription("How many entries a store in memory has, of each kind."), metric.WithUnit("{entry}")))
	options := make(map[string]metric.MeasurementOption)
	for kind := range sizes {
		options[kind] = metric.WithAttributeSet(attribute.NewSet(storeKey.String("memory"), kindKey.String(kind)))
	}
	return observe(meter, func(o metric.Observer) {
		for kind, size := range sizes {
			o.ObserveInt64(entries, int64(size()), options[kind])
		}
	}, entries)
}
