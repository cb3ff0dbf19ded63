package ratelimit_test

import (
	"context"
	"fmt"
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

// getAs sends a request of a tenant, without authentication.
func getAs(h http.Handler, tenant string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
	return w
}

type tenantKey struct{}

// Each tenant has its own tokens.
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

// Each tenant has the limit of its plan, which is looked up for each request, so that an upgrade
// applies at once.
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

// A limit that lets all requests pass during an outage.
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
