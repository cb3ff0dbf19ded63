package observability_test

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// The denials of a limiter in shadow are counted with the reasons of policy.Shadow. A limiter that
// is off has none.
func TestShadowDenialsByReason(t *testing.T) {
	type key struct {
		text string
		err  error
	}
	reasonsOf := func(e tokenbucket.Enforcement, opts ...policy.RateLimitOption) map[string]int64 {
		reader := metric.NewManualReader()
		meters := metric.NewMeterProvider(metric.WithReader(reader))
		st := storetest.NewFaulty(memstore.New())
		l := must(tokenbucket.New(st, "api", tokenbucket.PerHour(1), tokenbucket.WithMeterProvider(meters)))
		check(t, l.Hold(t.Context(), "held", time.Hour))
		check(t, l.SetEnforcement(e))
		var by key
		h := ratelimit.New(l, func(*http.Request) (string, error) { return by.text, by.err }, append(opts, policy.MeterProvider(meters))...)(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
		for _, by = range []key{
			{text: "a"}, {text: "a"}, {text: "a"}, {text: "held"}, {}, {err: policy.ErrNotProvided}, {text: strings.Repeat("k", 2000)}, {text: "down"},
		} {
			if by.text == "down" {
				st.Break(storetest.TakeTokens, storetest.Down)
			}
			rw := httptest.NewRecorder()
			h.ServeHTTP(rw, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
			if rw.Code != http.StatusNoContent {
				t.Errorf("%+v: %.10q, %v: status %d", e, by.text, by.err, rw.Code)
			}
		}
		return shadowsOf(t, reader)
	}
	want := reasonsOf(tokenbucket.Enforcement{}, policy.Shadow())
	if len(want) != 6 || want["quota-exceeded"] != 2 {
		t.Fatalf("policy.Shadow counts %v", want)
	}
	shadow, off := tokenbucket.Enforcement{Mode: tokenbucket.Shadow}, tokenbucket.Enforcement{Mode: tokenbucket.Off}
	if got := reasonsOf(shadow); !maps.Equal(got, want) {
		t.Errorf("a limiter in shadow counts %v, and policy.Shadow %v", got, want)
	}
	if got := reasonsOf(shadow, policy.Shadow()); !maps.Equal(got, want) {
		t.Errorf("both together count %v, and policy.Shadow %v", got, want)
	}
	if got := reasonsOf(off); len(got) > 0 {
		t.Errorf("a limiter that is off counts %v", got)
	}
}

// shadowsOf returns the numbers of shadow denials by reason.
func shadowsOf(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	check(t, reader.Collect(t.Context(), &all))
	n := make(map[string]int64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok && m.Name == "lockkeeper.policy.shadow_denials" {
				for _, p := range sum.DataPoints {
					reason, _ := p.Attributes.Value("lockkeeper.shadow.reason")
					n[reason.AsString()] += p.Value
				}
			}
		}
	}
	return n
}

// A limiter in shadow counts what it would have denied apart from denials, and its failures as
// such.
func TestResultsInShadow(t *testing.T) {
	reader := metric.NewManualReader()
	st := storetest.NewFaulty(memstore.New())
	l := must(tokenbucket.New(st, "api", tokenbucket.PerHour(2), tokenbucket.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))))
	check(t, l.SetEnforcement(tokenbucket.Enforcement{Mode: tokenbucket.Shadow}))
	for range 5 {
		_ = must(l.Allow(t.Context(), "k"))
	}
	_ = must(l.AllowN(t.Context(), "k", 3)) // above the burst
	check(t, l.Wait(t.Context(), "k"))
	st.Break(storetest.TakeTokens, storetest.Down)
	_ = must(l.Allow(t.Context(), "k"))
	check(t, l.SetEnforcement(tokenbucket.Enforcement{Mode: tokenbucket.Off}))
	_ = must(l.Allow(t.Context(), "k"))
	if got, want := decisionsOf(t, reader), map[string]uint64{"acquired": 3, "shadow_denied": 5, "error": 1}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
