package observability_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockkeeper/lockkeeper/core"
)

const module = "github.com/lockkeeper/lockkeeper/"

// set is a set of words.
type set map[string]bool

func (s set) sorted() []string { return slices.Sorted(maps.Keys(s)) }

// instrument is an instrument with records.
type instrument struct {
	Kind, Unit, Scope string
	Attributes        []string
}

// span has the attributes, events and links of the spans of a name and scope.
type span struct {
	Kind               string
	Attributes, Events []string
	Linked             bool
}

// exported is a summary of all signals of a program.
type exported struct {
	instruments map[string]instrument
	buckets     map[string]string
	values      map[string]set // of attributes of Lockkeeper, and error.type
	spans       map[string]span
	events      map[string][]string // their attributes
}

// summarize checks the other properties of instruments, and returns the summary.
func (w *world) summarize() exported {
	w.t.Helper()
	e := exported{make(map[string]instrument), make(map[string]string), make(map[string]set), make(map[string]span), make(map[string][]string)}
	for _, scope := range w.collect().ScopeMetrics {
		for _, m := range scope.Metrics {
			keys := make(set)
			all, bounds := points(w.t, m)
			if bounds != nil {
				e.buckets[m.Name] = boundsText(bounds)
			}
			if !strings.HasSuffix(m.Description, ".") {
				w.t.Errorf("%s is described as %q", m.Name, m.Description)
			}
			if scope.Scope.Version != core.Version {
				w.t.Errorf("%s has version %q", scope.Scope.Name, scope.Scope.Version)
			}
			for _, attributes := range all {
				for _, a := range attributes.ToSlice() {
					keys[string(a.Key)] = true
					e.value(a)
				}
			}
			i := instrument{kind(m.Data), m.Unit, strings.TrimPrefix(scope.Scope.Name, module), keys.sorted()}
			if before, ok := e.instruments[m.Name]; ok { // of another mechanism
				i.Scope = strings.Join(slices.Compact(slices.Sorted(slices.Values(append(strings.Split(before.Scope, ", "), i.Scope)))), ", ")
				if !reflect.DeepEqual(before.Attributes, i.Attributes) || before.Kind != i.Kind || before.Unit != i.Unit {
					w.t.Errorf("%s is %+v, and %+v", m.Name, before, i)
				}
			}
			e.instruments[m.Name] = i
		}
	}
	for _, s := range w.spans.GetSpans() {
		e.span(s)
	}
	return e
}

func (e exported) value(a attribute.KeyValue) {
	if e.values[string(a.Key)] == nil {
		e.values[string(a.Key)] = make(set)
	}
	e.values[string(a.Key)][a.Value.String()] = true
}

// span adds a span to the summary of its name. The name of a mechanism stands for any.
func (e exported) span(s tracetest.SpanStub) {
	name := "the current span"
	if scope, ours := strings.CutPrefix(s.InstrumentationScope.Name, module); ours {
		if s.InstrumentationScope.Version != core.Version {
			e.spans["of version "+s.InstrumentationScope.Version] = span{}
		}
		action, _, _ := strings.Cut(s.Name, " ")
		name = action + " {policy} of " + scope
	}
	known := e.spans[name]
	keys, events := make(set), make(set)
	for _, a := range s.Attributes {
		keys[string(a.Key)] = true
		e.value(a)
	}
	for _, event := range s.Events {
		events[event.Name] = true
		of := make(set)
		for _, a := range event.Attributes {
			of[string(a.Key)] = true
			e.value(a)
		}
		e.events[event.Name] = of.sorted()
	}
	add := func(s set, more []string) []string {
		for _, m := range more {
			s[m] = true
		}
		return s.sorted()
	}
	e.spans[name] = span{
		s.SpanKind.String(), add(keys, known.Attributes), add(events, known.Events), known.Linked || len(s.Links) > 0,
	}
}

// points returns the attributes of the time series of an instrument, and the bounds of its buckets.
func points(t testing.TB, m metricdata.Metrics) (all []attribute.Set, bounds []float64) {
	t.Helper()
	switch data := m.Data.(type) {
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			all, bounds = append(all, p.Attributes), p.Bounds
		}
	case metricdata.Histogram[int64]:
		for _, p := range data.DataPoints {
			all, bounds = append(all, p.Attributes), p.Bounds
		}
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	default:
		t.Fatalf("%s is a %T", m.Name, m.Data)
	}
	return all, bounds
}

func kind(data metricdata.Aggregation) string {
	switch data := data.(type) {
	case metricdata.Histogram[float64], metricdata.Histogram[int64]:
		return "Histogram"
	case metricdata.Gauge[int64]:
		return "Gauge"
	case metricdata.Sum[int64]:
		if data.IsMonotonic {
			return "Counter"
		}
		return "UpDownCounter"
	}
	return fmt.Sprintf("%T", data)
}
