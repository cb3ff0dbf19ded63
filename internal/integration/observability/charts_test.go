package observability_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/operate"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// fleetProcess is the stores of one process of a fleet: one for the documents of all, and one of its
// own, whose decisions take a random time.
type fleetProcess struct {
	store.Documents
	own *slowBuckets
}

type slowBuckets struct {
	*memstore.Store
	random *rand.Rand
}

func (s *slowBuckets) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	time.Sleep(time.Duration(math.Exp(s.random.Float64() * math.Log(float64(90*time.Millisecond)))))
	return s.Store.TakeTokens(ctx, r, more...)
}

// TakeQuickly decides nothing.
func (s *slowBuckets) TakeQuickly(context.Context, string, string, *store.Charge) (time.Duration, bool, bool) {
	return 0, false, false
}

// In ten minutes of a known load on four processes that have started at different times, the sums of
// the chart are those of the load and of the metrics, to the decision, and the percentiles are within
// a bucket of the exact ones.
func TestChartsAgree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		documents := memstore.New()
		defer func() { _ = documents.Close() }()
		reader := metric.NewManualReader()
		provider := metric.NewMeterProvider(metric.WithReader(reader))
		c := console.New(documents, console.AllowAnyone())
		defer func() { _ = c.Close() }()

		const tenMinutes = live.Slots * live.SlotLength
		ends := time.Now().Add(tenMinutes - 10*time.Second)
		var mu sync.Mutex
		var exact []time.Duration
		sent := make(map[bool]uint64) // by whether it was allowed
		var load sync.WaitGroup
		for i := range 4 {
			random := rand.New(rand.NewPCG(7, uint64(i)))
			p := &fleetProcess{Documents: documents, own: &slowBuckets{memstore.New(), random}}
			defer func() { _ = p.own.Close() }()
			here, err := presence.Start(p, presence.Service(fmt.Sprint(i)), presence.Including(p.own))
			check(t, err)
			defer func() { check(t, here.Stop(context.Background())) }()
			l, err := tokenbucket.New(p.own, "api", tokenbucket.PerSecond(3), tokenbucket.WithMeterProvider(provider))
			check(t, err)
			defer func() { _ = l.Close() }()
			load.Go(func() {
				for time.Now().Before(ends) {
					began := time.Now()
					d, err := l.Allow(t.Context(), "key")
					check(t, err)
					mu.Lock()
					exact = append(exact, time.Since(began))
					sent[d.Allowed]++
					mu.Unlock()
					time.Sleep(time.Duration(100+random.IntN(200)) * time.Millisecond) // fewer than 64 a slot: all are measured
				}
			})
			time.Sleep(1300 * time.Millisecond)
		}
		load.Wait()

		_, err := presence.Watch(t.Context(), documents)
		check(t, err)
		time.Sleep(live.SlotLength)
		fleet, err := presence.Watch(t.Context(), documents)
		check(t, err)
		var row *operate.Row
		for _, r := range operate.Rows(fleet) {
			if r.Name == "api" {
				row = r
			}
		}
		chart := row.Chart()
		var of operate.Point
		var slots []presence.Slot
		for _, p := range chart {
			of.Passed, of.Denied, of.Failed = of.Passed+p.Passed, of.Denied+p.Denied, of.Failed+p.Failed
		}
		for _, p := range row.Parts {
			slots = append(slots, p.Mechanism.Slots...)
		}
		if of.Passed != sent[true] || of.Denied != sent[false] || of.Failed != 0 || of.Denied == 0 {
			t.Errorf("the chart has %d allowed and %d denied, of %v", of.Passed, of.Denied, sent)
		}
		if measured := decisionsOf(t, reader); measured["acquired"] != sent[true] || measured["denied"] != sent[false] {
			t.Errorf("the metrics have %v, of %v", measured, sent)
		}
		var page struct {
			Row struct {
				Minutes struct{ Passed, Denied uint64 } `json:"last_ten_minutes"`
			} `json:"all"`
		}
		response := httptest.NewRecorder()
		c.ServeHTTP(response, httptest.NewRequest("GET", "/monitor/rate_limit/api?format=json", nil))
		check(t, json.Unmarshal(response.Body.Bytes(), &page))
		if m := page.Row.Minutes; m.Passed != sent[true] || m.Denied != sent[false] {
			t.Errorf("the page has %d allowed and %d denied, of %v: %s", m.Passed, m.Denied, sent, response.Body)
		}
		slices.Sort(exact)
		for _, part := range []float64{0.5, 0.9, 0.99} {
			is := exact[int(part*float64(len(exact)))]
			bound, _ := presence.Percentile(part, slots...)
			at, _ := slices.BinarySearch(live.Bounds[:], is)
			if off := slices.Index(live.Bounds[:], bound) - at; off < -1 || off > 1 {
				t.Errorf("p%.0f is %v, and the chart has %v", 100*part, is, bound)
			}
		}
	})
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// decisionsOf returns the numbers of decisions by result, as metrics.
func decisionsOf(t *testing.T, reader *metric.ManualReader) map[string]uint64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	check(t, reader.Collect(t.Context(), &all))
	n := make(map[string]uint64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if histogram, ok := m.Data.(metricdata.Histogram[float64]); ok && m.Name == "lockkeeper.rate_limit.decision.duration" {
				for _, p := range histogram.DataPoints {
					result, _ := p.Attributes.Value("lockkeeper.rate_limit.result")
					n[result.AsString()] += p.Count
				}
			}
		}
	}
	return n
}
