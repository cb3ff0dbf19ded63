package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

// Bounds of histograms, in seconds. The default ones are for milliseconds.
var (
	// StoreBounds are for calls with at most one round trip to a store.
	StoreBounds = []float64{0.00001, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 5}
	// WaitBounds are for calls that may wait.
	WaitBounds = []float64{0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
)

// Durations is a histogram of durations by end, and a counter of them for people who look at it
// now. The attributes of each end are computed in advance.
type Durations[E ~string] struct {
	histogram metric.Float64Histogram
	counter   *live.Counter // may be nil
	ends      []end[E]      // few, and the usual ones first: faster than a map
}

// end is an outcome, with an error type if it is an error.
type end[E ~string] struct {
	name      E
	errorType string
	counted   live.Result
	options   []metric.RecordOption
}

func newEnd[E ~string](name E, errorType string, counted live.Result, attributes []attribute.KeyValue) end[E] {
	if errorType != "" {
		attributes = append(attributes[:len(attributes):len(attributes)], errorTypeKey.String(errorType))
	}
	return end[E]{name, errorType, counted, []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(attributes...))}}
}

func (d *Durations[E]) end(name E, errorType string) *end[E] {
	for i := range d.ends {
		if e := &d.ends[i]; e.name == name && e.errorType == errorType {
			return e
		}
	}
	return nil
}

// counted returns how ends with this name are counted.
func (d *Durations[E]) counted(name E) live.Result {
	for i := range d.ends {
		if d.ends[i].name == name {
			return d.ends[i].counted
		}
	}
	return live.Failed
}

// durationsSpec describes a histogram.
type durationsSpec[E ~string] struct {
	scope, name, description string
	bounds                   []float64
	attributes               []attribute.KeyValue // of all ends
	key                      attribute.Key        // of the end
	counter                  *live.Counter
	ends                     []E
	failed                   E                 // the end that has an error type
	counted                  map[E]live.Result // of ends that neither passed nor have an error type
}

func newDurations[E ~string](p Providers, s durationsSpec[E]) *Durations[E] {
	d := &Durations[E]{
		counter: s.counter,
		histogram: must(p.meter(s.scope).Float64Histogram(s.name, metric.WithDescription(s.description), metric.WithUnit("s"),
			metric.WithExplicitBucketBoundaries(s.bounds...))),
		ends: s.allEnds(),
	}
	return d
}

// allEnds returns all ends, with their attributes.
func (s durationsSpec[E]) allEnds() (ends []end[E]) {
	for _, name := range s.ends {
		attributes := append([]attribute.KeyValue{s.key.String(string(name))}, s.attributes...)
		if name != s.failed {
			ends = append(ends, newEnd(name, "", s.counted[name], attributes))
			continue
		}
		for _, t := range ErrorTypes {
			ends = append(ends, newEnd(name, t, live.Failed, attributes))
		}
	}
	return ends
}

// Begin returns the time if the duration will be recorded, and zero otherwise.
func (d *Durations[E]) Begin(ctx context.Context) time.Time {
	if !d.histogram.Enabled(ctx) && !d.counter.Measures() {
		return time.Time{}
	}
	return time.Now()
}

// End counts an end, and records the duration since began, unless that is zero. The error is of a
// failed call.
func (d *Durations[E]) End(ctx context.Context, began time.Time, name E, err error) {
	if d.counter.Started() {
		d.counter.Count(d.counted(name))
	}
	if began.IsZero() {
		return
	}
	elapsed := time.Since(began)
	d.counter.Took(elapsed)
	if !d.histogram.Enabled(ctx) {
		return
	}
	errorType := ""
	if err != nil {
		errorType = ErrorType(err)
	}
	if e := d.end(name, errorType); e != nil {
		d.histogram.Record(ctx, elapsed.Seconds(), e.options...)
	}
}
