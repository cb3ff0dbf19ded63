package ratelimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	goleak.VerifyTestMain(m)
}

func newLimiter(t *testing.T, st store.Buckets, plan tokenbucket.Plan) *tokenbucket.Limiter {
	t.Helper()
	l, err := tokenbucket.New(st, "api", plan)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve starts a server with one route behind middleware. seen collects the errors that gin was
// told of.
func serve(t *testing.T, seen *[]*gin.Error, middleware ...gin.HandlerFunc) string {
	t.Helper()
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		if seen != nil {
			*seen = append(*seen, c.Errors...)
		}
	})
	r.Use(middleware...)
	r.GET("/x/:id", func(c *gin.Context) { c.String(http.StatusOK, "ok") })
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return server.URL
}

func get(t *testing.T, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func wantStatus(t *testing.T, resp *http.Response, status int) {
	t.Helper()
	if resp.StatusCode != status {
		t.Fatalf("status %d, want %d", resp.StatusCode, status)
	}
}

func wantHeader(t *testing.T, resp *http.Response, name, value string) {
	t.Helper()
	if got := strings.Join(resp.Header.Values(name), ", "); got != value {
		t.Errorf("%s is %q, want %q", name, got, value)
	}
}

// wantProblem checks a problem body and returns its members.
func wantProblem(t *testing.T, resp *http.Response, body, suffix string) map[string]any {
	t.Helper()
	wantHeader(t, resp, "Content-Type", "application/problem+json")
	var problem map[string]any
	if err := json.Unmarshal([]byte(body), &problem); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	if kind, _ := problem["type"].(string); !strings.HasSuffix(kind, "#"+suffix) {
		t.Errorf("problem type %q, want #%s", kind, suffix)
	}
	if problem["status"] != float64(resp.StatusCode) {
		t.Errorf("problem has status %v in a response with %d", problem["status"], resp.StatusCode)
	}
	return problem
}

func TestHeadersOnEveryResponse(t *testing.T) {
	l := newLimiter(t, memstore.New(), tokenbucket.PerMinute(100))
	url := serve(t, nil, ratelimit.New(l, ginmw.ByClientIP(clientip.Direct())))
	resp, body := get(t, url+"/x/1")
	wantStatus(t, resp, http.StatusOK)
	if body != "ok" {
		t.Errorf("body %q", body)
	}
	wantHeader(t, resp, "RateLimit-Policy", `"api";q=100;w=60`)
	wantHeader(t, resp, "RateLimit", `"api";r=99;t=1`)
	if _, ok := resp.Header["Retry-After"]; ok {
		t.Error("an allowed request has Retry-After")
	}
}

func TestOverTheLimit(t *testing.T) {
	var seen []*gin.Error
	l := newLimiter(t, memstore.New(), tokenbucket.Limits{
		tokenbucket.PerMinute(60).Burst(10).Named("burst"),
		tokenbucket.PerDay(1).Named("daily"),
	})
	url := serve(t, &seen, ratelimit.New(l, ginmw.Global(), policy.LegacyHeaders()))
	resp, _ := get(t, url+"/x/1")
	wantStatus(t, resp, http.StatusOK)
	resp, body := get(t, url+"/x/1")
	wantStatus(t, resp, http.StatusTooManyRequests)
	problem := wantProblem(t, resp, body, "quota-exceeded")
	if problem["type"] != "https://iana.org/assignments/http-problem-types#quota-exceeded" {
		t.Errorf("type %v", problem["type"])
	}
	if violated, _ := problem["violated-policies"].([]any); len(violated) != 1 || violated[0] != "daily" {
		t.Errorf("violated-policies %v, want daily alone", problem["violated-policies"])
	}
	wantHeader(t, resp, "RateLimit-Policy", `"burst";q=10;w=10, "daily";q=1;w=86400`)
	wantHeader(t, resp, "RateLimit", `"burst";r=9;t=1, "daily";r=0;t=86400`)
	wantHeader(t, resp, "Retry-After", "86400")
	wantHeader(t, resp, "X-RateLimit-Limit", "1")
	wantHeader(t, resp, "X-RateLimit-Remaining", "0")
	wantHeader(t, resp, "X-RateLimit-Reset", "86400")
	if len(seen) > 0 {
		t.Errorf("a denial was reported to gin as an error: %v", seen)
	}
}

// Retry-After must not point earlier than t, whatever the limit's size.
func TestRetryAfterIsNotBeforeReset(t *testing.T) {
	l := newLimiter(t, memstore.New(), tokenbucket.PerHour(3600).Burst(5))
	url := serve(t, nil, ratelimit.New(l, ginmw.Global()))
	for range 5 {
		get(t, url+"/x/1")
	}
	resp, _ := get(t, url+"/x/1")
	wantStatus(t, resp, http.StatusTooManyRequests)
	wantHeader(t, resp, "Retry-After", "1")
	wantHeader(t, resp, "RateLimit", `"api";r=0;t=1`)
}

func TestSeveralLimitersHaveTheirSay(t *testing.T) {
	st := memstore.New()
	a, _ := tokenbucket.New(st, "a", tokenbucket.PerMinute(5))
	b, _ := tokenbucket.New(st, "b", tokenbucket.PerMinute(7))
	url := serve(t, nil, ratelimit.New(a, ginmw.Global()), ratelimit.New(b, ginmw.Global()))
	resp, _ := get(t, url+"/x/1")
	wantHeader(t, resp, "RateLimit-Policy", `"a";q=5;w=60, "b";q=7;w=60`)
}

func TestKeys(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		name   string
		key    ginmw.KeyFunc
		header []string
		status int
		kind   string
	}{
		{"header", ginmw.ByHeader("X-Api-Key"), []string{"X-Api-Key", "k"}, 200, ""},
		{"no header", ginmw.ByHeader("X-Api-Key"), nil, 400, "key-missing"},
		{"empty header", ginmw.ByHeader("X-Api-Key"), []string{"X-Api-Key", ""}, 400, "key-missing"},
		{"two headers", ginmw.ByHeader("X-Api-Key"), []string{"X-Api-Key", "a", "X-Api-Key", "b"}, 400, "key-missing"},
		{"long key", ginmw.ByHeader("X-Api-Key"), []string{"X-Api-Key", strings.Repeat("k", 1025)}, 400, "key-malformed"},
		{"param", ginmw.ByParam("id"), nil, 200, ""},
		{"missing param", ginmw.ByParam("nope"), nil, 500, "internal-error"},
		{"route", ginmw.ByRoute(), nil, 200, ""},
		{"context", ginmw.ByContext("user"), nil, 500, "internal-error"},
		{"first of", ginmw.FirstOf(ginmw.ByHeader("X-Api-Key"), ginmw.ByClientIP(clientip.Direct())), nil, 200, ""},
		{"join", ginmw.Join(ginmw.ByHeader("X-Api-Key"), ginmw.Global()), nil, 400, "key-missing"},
		{"failing key", func(*gin.Context) (string, error) { return "", boom }, nil, 500, "internal-error"},
		{"empty key", func(*gin.Context) (string, error) { return "", nil }, nil, 400, "key-missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var seen []*gin.Error
			url := serve(t, &seen, ratelimit.New(newLimiter(t, memstore.New(), tokenbucket.PerMinute(1)), c.key, policy.FailOpen()))
			resp, body := get(t, url+"/x/1", c.header...)
			wantStatus(t, resp, c.status)
			if c.kind != "" {
				wantProblem(t, resp, body, c.kind)
			}
			if strings.Contains(body, "boom") {
				t.Errorf("an internal error reached the client: %s", body)
			}
			if want := c.status == 500; (len(seen) > 0) != want {
				t.Errorf("gin was told of %v", seen)
			}
		})
	}
}

func TestForwardedForOfAStrangerChangesNothing(t *testing.T) {
	l := newLimiter(t, memstore.New(), tokenbucket.PerHour(2))
	url := serve(t, nil, ratelimit.New(l, ginmw.ByClientIP(clientip.Direct())))
	for i, status := range []int{200, 200, 429, 429} {
		resp, _ := get(t, url+"/x/1", "X-Forwarded-For", "203.0.113."+strconv.Itoa(i), "X-Real-IP", "203.0.113.9")
		wantStatus(t, resp, status)
	}
}

func TestStoreDown(t *testing.T) {
	faulty := storetest.NewFaulty(memstore.New())
	faulty.Break(storetest.TakeTokens, storetest.Down)
	limiter := newLimiter(t, faulty, tokenbucket.PerMinute(1))

	var seen []*gin.Error
	url := serve(t, &seen, ratelimit.New(limiter, ginmw.Global()))
	resp, body := get(t, url+"/x/1")
	wantStatus(t, resp, http.StatusServiceUnavailable)
	wantProblem(t, resp, body, "temporary-reduced-capacity")
	wantHeader(t, resp, "Retry-After", "1")
	if strings.Contains(body, "told to fail") {
		t.Errorf("an internal error reached the client: %s", body)
	}
	if len(seen) != 1 || !errors.Is(seen[0], store.ErrUnavailable) {
		t.Errorf("gin was told of %v, want the outage", seen)
	}

	open := serve(t, nil, ratelimit.New(limiter, ginmw.Global(), policy.FailOpen()))
	for range 3 {
		resp, _ = get(t, open+"/x/1")
		wantStatus(t, resp, http.StatusOK)
	}
	resp, _ = get(t, serve(t, nil, ratelimit.New(limiter, ginmw.ByHeader("X-Api-Key"), policy.FailOpen()))+"/x/1")
	wantStatus(t, resp, http.StatusBadRequest) // an outage policy hides no missing key

	faulty.Mend(storetest.Any)
	for _, status := range []int{200, 429} {
		resp, _ = get(t, open+"/x/1")
		wantStatus(t, resp, status)
	}
}

func TestFailingPlanIsAnInternalError(t *testing.T) {
	l := newLimiter(t, memstore.New(), tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) {
		return nil, errors.New("no tiers today")
	}))
	resp, body := get(t, serve(t, nil, ratelimit.New(l, ginmw.Global(), policy.FailOpen()))+"/x/1")
	wantStatus(t, resp, http.StatusInternalServerError)
	wantProblem(t, resp, body, "internal-error")
}

func TestUnlessAndDeny(t *testing.T) {
	l := newLimiter(t, memstore.New(), tokenbucket.PerHour(1))
	url := serve(t, nil, ratelimit.New(l, ginmw.Global(),
		ginmw.Unless(func(c *gin.Context) bool { return c.Query("probe") != "" }),
		ginmw.OnDeny(func(c *gin.Context, d policy.Denial) {
			c.String(d.Status(), "%s after %v", d.Reason, d.RetryAfter.Round(time.Hour))
		})))
	for range 3 {
		resp, _ := get(t, url+"/x/1?probe=1")
		wantStatus(t, resp, http.StatusOK)
		wantHeader(t, resp, "RateLimit", "")
	}
	get(t, url+"/x/1")
	resp, body := get(t, url+"/x/1")
	wantStatus(t, resp, http.StatusTooManyRequests)
	if body != "quota-exceeded after 1h0m0s" {
		t.Errorf("body %q", body)
	}
	if resp.Header.Get("Retry-After") == "" || resp.Header.Get("RateLimit") == "" {
		t.Errorf("the hook's answer lacks the denial's fields: %v", resp.Header)
	}
}

func TestWiringMistakesPanic(t *testing.T) {
	l := newLimiter(t, memstore.New(), tokenbucket.PerHour(1))
	for want, wire := range map[string]func(){
		"ratelimit: New: nil limiter": func() { ratelimit.New(nil, ginmw.Global()) },
		"ratelimit: New: nil key":     func() { ratelimit.New(l, nil) },
		"ginmw: Unless: nil function": func() { ginmw.Unless(nil) },
		"ginmw: OnDeny: nil function": func() { ginmw.OnDeny(nil) },
		"ginmw: Join: no keys":        func() { ginmw.Join() },
		"ginmw: FirstOf: nil key":     func() { ginmw.FirstOf(nil) },
		"ginmw: ScopeBy: nil key":     func() { ginmw.ScopeBy(nil) },
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panicked with %v", got)
				}
			}()
			wire()
		})
	}
}
