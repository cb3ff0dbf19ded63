package main_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collectmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collecttrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	resourcev1 "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/proto"
)

// scrape returns the sum of the series with these words.
func (i *instance) scrape(words ...string) (sum float64) {
	i.t.Helper()
	a := i.do(call{method: http.MethodGet, path: "/metrics"})
	if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
		i.t.Fatalf("GET /metrics: %d, %v", a.status, a.header)
	}
	for _, secret := range []string{"alice", "metrics-key", "127.0.0.1"} {
		if strings.Contains(a.body, secret) {
			i.t.Errorf("the metrics have %q in them", secret)
		}
	}
series:
	for line := range strings.Lines(a.body) {
		for _, word := range words {
			if !strings.Contains(line, word) || strings.HasPrefix(line, "#") {
				continue series
			}
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			i.t.Fatalf("%q: %v", line, err)
		}
		sum += value
	}
	return sum
}

func TestMetricsCanBeFetched(t *testing.T) {
	i := start(t, "-rate", "1", "-burst", "3")
	i.do(purchase("metrics-key"))
	i.do(purchase("metrics-key"))
	i.do(purchase("metrics-key"))
	if a := i.do(purchase("metrics-key")); a.status != http.StatusTooManyRequests {
		t.Fatalf("the fourth request: %d", a.status)
	}
	i.do(call{method: http.MethodPost, path: "/api/stock/tea", user: "alice", body: `{"quantity":5}`})
	i.do(call{method: http.MethodGet, path: "/api/report", user: "alice"})
	for _, want := range []struct {
		value float64
		words []string
	}{
		{3, []string{`lockkeeper_rate_limit_decision_duration_seconds_count`, `lockkeeper_policy="api"`, `lockkeeper_rate_limit_result="acquired"`}},
		{1, []string{`lockkeeper_rate_limit_decision_duration_seconds_count`, `lockkeeper_rate_limit_result="denied"`}},
		{1, []string{`lockkeeper_idempotency_duration_seconds_count`, `lockkeeper_policy="checkout"`, `lockkeeper_idempotency_result="executed"`}},
		{2, []string{`lockkeeper_idempotency_duration_seconds_count`, `lockkeeper_idempotency_result="replayed"`}},
		{1, []string{`lockkeeper_lock_acquire_duration_seconds_count`, `lockkeeper_policy="stock"`, `lockkeeper_lock_result="acquired"`}},
		{1, []string{`lockkeeper_semaphore_acquire_duration_seconds_count`, `lockkeeper_policy="reports"`}},
		{1, []string{`lockkeeper_store_entry_count`, `lockkeeper_store_kind="operation"`}},
	} {
		if got := i.scrape(want.words...); got != want.value {
			t.Errorf("%s: %v, want %v", want.words, got, want.value)
		}
	}
}

// Buyers of the same article wait for each other, which the metrics show.
func TestMetricsOfAContendedLock(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.do(stockCall(http.MethodPost, "tea", `{"quantity":50}`)).want(t, http.StatusOK, false)
	const buyers = 20
	var wg sync.WaitGroup
	for range buyers {
		wg.Go(func() {
			if a, err := i.try(take("")); err != nil || a.status != http.StatusOK {
				t.Errorf("%d, %v", a.status, err)
			}
		})
	}
	wg.Wait()
	if got := i.scrape(`lockkeeper_lock_acquire_duration_seconds_count`, `lockkeeper_policy="stock"`, `="acquired"`); got != buyers+1 {
		t.Errorf("%v acquisitions, want %d", got, buyers+1)
	}
	// All but the first wait, each for at least as long as the one before it thinks, which is 2 ms.
	if got := i.scrape(`lockkeeper_lock_acquire_duration_seconds_sum`, `lockkeeper_policy="stock"`, `="acquired"`); got < 0.01 {
		t.Errorf("they took %v seconds together", got)
	}
	if got := i.scrape(`lockkeeper_lock_hold_duration_seconds_count`, `lockkeeper_policy="stock"`, `lockkeeper_lock_end="released"`); got != buyers+1 {
		t.Errorf("%v holds, want %d", got, buyers+1)
	}
}

// The number of series does not depend on clients.
func TestClientsMakeNoSeries(t *testing.T) {
	t.Parallel()
	i := start(t)
	for port := range 5 {
		req, err := http.NewRequest(http.MethodGet, i.url+"/api/orders/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "made-up-" + strconv.Itoa(port) + ".example:" + strconv.Itoa(4000+port)
		req.Header.Set("X-User", "alice")
		resp, err := i.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	body := i.do(call{method: http.MethodGet, path: "/metrics"}).body
	series := regexp.MustCompile(`(?m)^http_server_request_duration_seconds_count\{.*\} (\d+)$`).FindAllStringSubmatch(body, -1)
	if len(series) != 1 || series[0][1] != "5" || strings.Contains(body, "made-up") {
		t.Errorf("%d series: %v", len(series), series)
	}
}

// span is a printed span.
type span struct {
	Name        string
	SpanContext struct{ SpanID string }
	Parent      struct{ SpanID string }
	Attributes  []struct {
		Key   string
		Value struct{ Value any }
	}
	Links []struct{ SpanContext struct{ SpanID string } }
}

func (s *span) result() any {
	for _, a := range s.Attributes {
		if a.Key == "lockkeeper.idempotency.result" {
			return a.Value.Value
		}
	}
	return nil
}

func TestSignalsOnStdout(t *testing.T) {
	t.Parallel()
	i := start(t, "-otel", "stdout")
	i.do(purchase("1"))
	i.do(purchase("1"))
	if code := i.stop(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d\n%s", code, i.stderr)
	}
	worked, replayed, requests, metrics := "", "", 0, false
	printed := json.NewDecoder(strings.NewReader(i.stdout.String()))
	for {
		var raw json.RawMessage
		if err := printed.Decode(&raw); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, i.stdout)
		}
		var s span
		if err := json.Unmarshal(raw, &s); err != nil {
			t.Fatal(err)
		}
		switch {
		case s.Name == "begin checkout" && s.result() == "started":
			worked = s.Parent.SpanID // the request's, under which the attempt ran
		case s.Name == "begin checkout" && s.result() == "replayed" && len(s.Links) == 1:
			replayed = s.Links[0].SpanContext.SpanID
		case strings.Contains(s.Name, "/api/checkout"):
			requests++
		case strings.Contains(string(raw), "lockkeeper.idempotency.duration"):
			metrics = true
		}
	}
	if worked == "" || replayed != worked || requests != 2 || !metrics {
		t.Errorf("span %q did the work, and the replay's links to %q; %d requests; metrics: %v; of\n%s", worked, replayed, requests, metrics, i.stdout)
	}
}

// collector receives signals over OTLP.
type collector struct {
	mu      sync.Mutex
	spans   map[string]int
	metrics map[string]bool
	service string
}

func (c *collector) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	defer c.mu.Unlock()
	about := func(r *resourcev1.Resource) {
		for _, a := range r.GetAttributes() {
			if a.GetKey() == "service.name" {
				c.service = a.GetValue().GetStringValue()
			}
		}
	}
	switch r.URL.Path {
	case "/v1/traces":
		var export collecttrace.ExportTraceServiceRequest
		if proto.Unmarshal(body, &export) != nil {
			return
		}
		for _, rs := range export.GetResourceSpans() {
			about(rs.GetResource())
			for _, ss := range rs.GetScopeSpans() {
				for _, s := range ss.GetSpans() {
					c.spans[s.GetName()]++
				}
			}
		}
	case "/v1/metrics":
		var export collectmetrics.ExportMetricsServiceRequest
		if proto.Unmarshal(body, &export) != nil {
			return
		}
		for _, rm := range export.GetResourceMetrics() {
			for _, sm := range rm.GetScopeMetrics() {
				for _, m := range sm.GetMetrics() {
					c.metrics[m.GetName()] = true
				}
			}
		}
	}
}

func TestSignalsByOTLP(t *testing.T) {
	t.Parallel()
	c := &collector{spans: map[string]int{}, metrics: map[string]bool{}}
	server := httptest.NewServer(c)
	defer server.Close()
	i := startIn(t, []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL, "OTEL_SERVICE_NAME=shop",
		"OTEL_BSP_SCHEDULE_DELAY=3600000", // milliseconds: only the end of the program sends
		"OTEL_METRIC_EXPORT_INTERVAL=3600000",
	}, "-otel", "otlp")
	i.do(purchase("1"))
	if code := i.stop(syscall.SIGINT); code != 0 { // the rest is sent
		t.Fatalf("exit code %d\n%s", code, i.stderr)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spans["begin checkout"] != 1 || !c.metrics["lockkeeper.rate_limit.decision.duration"] || c.service != "shop" {
		t.Errorf("service %q sent spans %v and metrics %v", c.service, c.spans, c.metrics)
	}
}

// A collector that is down does not affect customers, and delays the program's end by a bounded
// time.
func TestCollectorDown(t *testing.T) {
	t.Parallel()
	i := startIn(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1"}, "-otel", "otlp")
	if a := i.do(purchase("1")); a.status != http.StatusCreated {
		t.Errorf("%d %s", a.status, a.body)
	}
	began := time.Now()
	i.stop(syscall.SIGTERM)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v to end", took)
	}
}

// Nor does one that does not reply.
func TestCollectorHangs(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer server.Close()
	i := startIn(t, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + server.URL}, "-otel", "otlp")
	i.do(purchase("1")).want(t, http.StatusCreated, false)
	began := time.Now()
	code := i.stop(syscall.SIGTERM)
	// Three seconds for the traces and three for the metrics. Left alone, the exporters try for a minute.
	if took := time.Since(began); took > 9*time.Second {
		t.Errorf("it took %v to end", took)
	}
	if code != 0 || !strings.Contains(i.stderr.String(), "checkout: some telemetry is lost: ") {
		t.Errorf("exit code %d\n%s", code, i.stderr)
	}
}

func TestSignalsToNowhere(t *testing.T) {
	t.Parallel()
	out, err := exec.Command(binary, "-addr", "127.0.0.1:0", "-otel", "jaeger").CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "invalid value \"jaeger\" for flag -otel: must be stdout or otlp\n") {
		t.Errorf("%v: %s", err, out)
	}
}
