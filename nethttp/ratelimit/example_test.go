package ratelimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

var hello200 = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") })

// getAs sends a request of a tenant. Real ones are known by their authentication.
func getAs(h http.Handler, tenant string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
	return w
}

type tenantKey struct{}

// Each tenant has its own tokens, whatever the others do.
func Example_perTenant() {
	limiter, err := tokenbucket.New(memstore.New(), "tenant", tokenbucket.PerMinute(100).Burst(2))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByContext(tenantKey{}))(hello200)

	fmt.Println(getAs(h, "acme").Code, getAs(h, "acme").Code, getAs(h, "acme").Code)
	fmt.Println(getAs(h, "zenith").Code)
	// Output:
	// 200 200 429
	// 200
}

// What a tenant pays for decides what it may use. The plan is looked up for each request, so an upgrade
// counts at once.
func Example_tiers() {
	plan := func(_ context.Context, tenant string) (tokenbucket.Plan, error) {
		if tenant == "acme" {
			return tokenbucket.PerSecond(100).Named("gold"), nil
		}
		return tokenbucket.PerSecond(5).Named("free"), nil
	}
	limiter, err := tokenbucket.New(memstore.New(), "tier", tokenbucket.PlanFunc(plan))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByContext(tenantKey{}))(hello200)

	fmt.Println(getAs(h, "acme").Header().Get("RateLimit-Policy"))
	fmt.Println(getAs(h, "zenith").Header().Get("RateLimit-Policy"))
	// Output:
	// "gold";q=100;w=1
	// "free";q=5;w=1
}

// A limit that would rather let everybody pass than nobody.
func Example_failOpen() {
	store := storetest.NewFaulty(memstore.New())
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()), policy.FailOpen())(hello200)

	store.Break(storetest.Any, storetest.Down) // an outage
	fmt.Println(getAs(h, "acme").Code)
	// Output: 200
}

// Browsers are shown a page. When to come back is in Retry-After already.
func Example_onDenyPage() {
	limiter, err := tokenbucket.New(memstore.New(), "pages", tokenbucket.PerHour(60).Burst(1))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.Global(), nethttp.OnDeny(func(w http.ResponseWriter, _ *http.Request, d policy.Denial) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(d.Status())
		_, _ = fmt.Fprint(w, "<h1>One moment, please</h1>")
	}))(hello200)

	getAs(h, "acme")
	w := getAs(h, "acme")
	fmt.Println(w.Code, w.Header().Get("Retry-After"), w.Body)
	// Output: 429 60 <h1>One moment, please</h1>
}

// An API has error bodies of its own, which say how its limit stands.
func Example_onDenyLimit() {
	limiter, err := tokenbucket.New(memstore.New(), "requests", tokenbucket.PerHour(60).Burst(2))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByContext(tenantKey{}),
		policy.ProblemTypes("https://shop.example/errors#"),
		nethttp.OnDeny(func(w http.ResponseWriter, _ *http.Request, d policy.Denial) {
			body := map[string]any{"error": d.Title(), "see": d.Type()}
			if d.Reason == policy.QuotaExceeded {
				body["limit"] = d.Limit.Capacity
				body["remaining"] = d.Limit.Remaining
				body["reset"] = math.Ceil(d.Limit.Reset.Seconds())
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(d.Status())
			_ = json.NewEncoder(w).Encode(body)
		}))(hello200)

	for range 2 {
		getAs(h, "acme")
	}
	fmt.Print(getAs(h, "acme").Body)
	// Output: {"error":"Request cannot be satisfied as assigned quota has been exceeded","limit":2,"remaining":0,"reset":120,"see":"https://iana.org/assignments/http-problem-types#quota-exceeded"}
}
