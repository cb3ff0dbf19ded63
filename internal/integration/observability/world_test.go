package observability_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	promexporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	apitrace "go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestMain(m *testing.M) { leaktest.Main(m, redistest.Redialing) }

// patience is how long a test waits for an event.
const patience = 20 * time.Second

// world has all signals of a program.
type world struct {
	t        testing.TB
	reader   *metric.ManualReader
	registry *prometheus.Registry
	meters   *metric.MeterProvider
	spans    *tracetest.InMemoryExporter
	tracers  *trace.TracerProvider
	log      logbook
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, reader: metric.NewManualReader(), registry: prometheus.NewRegistry(), spans: tracetest.NewInMemoryExporter()}
	exporter := must(promexporter.New(promexporter.WithRegisterer(w.registry)))
	w.meters = metric.NewMeterProvider(metric.WithReader(w.reader), metric.WithReader(exporter))
	w.tracers = trace.NewTracerProvider(trace.WithSyncer(w.spans))
	t.Cleanup(func() {
		_ = w.meters.Shutdown(context.Background())
		_ = w.tracers.Shutdown(context.Background())
	})
	return w
}

func (w *world) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(&w.log, nil)) }

// request runs f under a span as a server's own instrumentation makes one, and returns that span.
func (w *world) request(f func(context.Context)) tracetest.SpanStub {
	w.t.Helper()
	ctx, span := w.tracers.Tracer("application").Start(w.t.Context(), "request", apitrace.WithSpanKind(apitrace.SpanKindServer))
	f(ctx)
	span.End()
	for _, s := range w.spans.GetSpans() {
		if s.SpanContext.SpanID() == span.SpanContext().SpanID() {
			return s
		}
	}
	w.t.Fatal("the request's span was not exported")
	return tracetest.SpanStub{}
}

// last is the span of a name that ended last.
func (w *world) last(name string) tracetest.SpanStub {
	w.t.Helper()
	var last tracetest.SpanStub
	for _, s := range w.spans.GetSpans() {
		if s.Name == name {
			last = s
		}
	}
	if last.Name == "" {
		w.t.Fatalf("no span %q", name)
	}
	return last
}

func (w *world) collect() metricdata.ResourceMetrics {
	w.t.Helper()
	var all metricdata.ResourceMetrics
	if err := w.reader.Collect(context.Background(), &all); err != nil {
		w.t.Fatal(err)
	}
	return all
}

// logbook records the log, as JSON.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// records returns the lines whose message contains a text.
func (l *logbook) records(t testing.TB, message string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		var record map[string]any
		ok(t, json.Unmarshal([]byte(line), &record))
		if strings.Contains(record["msg"].(string), message) {
			found = append(found, record)
		}
	}
	return found
}

func (w *world) memstore(opts ...memstore.Option) *storetest.Faulty {
	st := memstore.New(append(opts, memstore.WithMeterProvider(w.meters))...)
	w.t.Cleanup(func() { _ = st.Close() })
	return storetest.NewFaulty(st)
}

func (w *world) redisstore(server *redistest.Server) *redisstore.Store {
	w.t.Helper()
	st := w.onClient(server.Client())
	w.t.Cleanup(func() { _ = st.Close() })
	return st
}

// reply is how long a server may take to reply: a busy machine is no outage.
var reply = testpace.Scale(5 * time.Second)

// onClient returns a store that the caller closes.
func (w *world) onClient(client redis.UniversalClient) *redisstore.Store {
	return must(redisstore.New(client, redisstore.WithTimeout(reply),
		redisstore.WithMeterProvider(w.meters), redisstore.WithLogger(w.logger())))
}

func (w *world) limiter(st store.Buckets, plan tokenbucket.Plan, opts ...tokenbucket.Option) *tokenbucket.Limiter {
	return must(tokenbucket.New(st, "api", plan,
		append(opts, tokenbucket.WithMeterProvider(w.meters), tokenbucket.WithTracerProvider(w.tracers))...))
}

func (w *world) locker(st store.Leases, opts ...lock.Option) *lock.Locker {
	l := must(lock.New(st, "carts", append(opts, lock.WithMeterProvider(w.meters), lock.WithTracerProvider(w.tracers),
		lock.WithLogger(w.logger()))...))
	w.t.Cleanup(func() { _ = l.Close() })
	return l
}

func (w *world) semaphore(st store.Leases, opts ...semaphore.Option) *semaphore.Semaphore {
	s := must(semaphore.New(st, "reports", 1, append(opts, semaphore.WithMeterProvider(w.meters),
		semaphore.WithTracerProvider(w.tracers), semaphore.WithLogger(w.logger()))...))
	w.t.Cleanup(func() { _ = s.Close() })
	return s
}

func (w *world) guard(st store.Records, opts ...guard.Option) *guard.Guard {
	return must(guard.New(st, "orders", append(opts, guard.WithMeterProvider(w.meters), guard.WithTracerProvider(w.tracers),
		guard.WithLogger(w.logger()))...))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// until waits for a condition.
func until(t testing.TB, what string, so func() bool) {
	t.Helper()
	testpace.Eventually(t, patience, what, so)
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
