package ratelimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func get200(h http.Handler, path string) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code
}

// A burst of two for each client address.
func Example_perClientAddress() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(100).Burst(2))
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.ByClientIP(clientip.Direct())))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })

	fmt.Println(get200(r, "/"), get200(r, "/"), get200(r, "/"))
	// Output: 200 200 429
}

// Behind a load balancer, the address is that which the balancer reports.
func Example_behindALoadBalancer() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	balancers := clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.ByClientIP(balancers)))
}

// A limit for each user and another for each tenant, and health checks that count for neither.
func Example_perUserAndTenant() {
	store := memstore.New()
	users, err := tokenbucket.New(store, "user", tokenbucket.Limits{
		tokenbucket.PerSecond(5).Named("burst"),
		tokenbucket.PerDay(1000).Named("daily"),
	})
	if err != nil {
		panic(err)
	}
	tenants, err := tokenbucket.New(store, "tenant", tokenbucket.PerSecond(100))
	if err != nil {
		panic(err)
	}
	health := ginmw.Unless(func(c *gin.Context) bool { return c.FullPath() == "/health" })
	r := gin.New()
	r.Use(
		ratelimit.New(users, ginmw.ByContext("user"), health),
		ratelimit.New(tenants, ginmw.ByContext("tenant"), health, policy.FailOpen()),
	)
	r.GET("/health", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	fmt.Println(get200(r, "/health"))
	// Output: 204
}

// A request costs the tokens of its answer, for which an estimate is reserved until they are known.
func ExampleCosts() {
	limiter, err := tokenbucket.New(memstore.New(), "llm", tokenbucket.Limits{
		tokenbucket.PerDay(1_000).Named("requests"), tokenbucket.PerDay(90_000).Named("tokens"),
	})
	if err != nil {
		panic(err)
	}
	estimate := func(*gin.Context) tokenbucket.Cost { return tokenbucket.Cost{"requests": 1, "tokens": 2_000} }
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.Global(), ratelimit.Costs(estimate)))
	r.GET("/", func(c *gin.Context) {
		c.String(http.StatusOK, "hello")
		if reservation, ok := tokenbucket.FromContext(c.Request.Context()); ok {
			_ = reservation.Use("tokens", 80)
		}
	})

	fmt.Println(get200(r, "/"))
	d, err := limiter.Peek(context.Background(), "global")
	if err != nil {
		panic(err)
	}
	for _, l := range d.Limits() {
		fmt.Println(l.Capacity-l.Remaining, l.Name)
	}
	// Output:
	// 200
	// 1 requests
	// 80 tokens
}

// Only attempts to log in that fail count.
func Example_logins() {
	limiter, err := tokenbucket.New(memstore.New(), "login", tokenbucket.PerHour(2))
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.ByClientIP(clientip.Direct()), policy.ChargeStatus(http.StatusUnauthorized)))
	r.GET("/right", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	r.GET("/wrong", func(c *gin.Context) { c.Status(http.StatusUnauthorized) })

	fmt.Println(get200(r, "/right"), get200(r, "/right"), get200(r, "/right"))
	fmt.Println(get200(r, "/wrong"), get200(r, "/wrong"), get200(r, "/wrong"), get200(r, "/right"))
	// Output:
	// 204 204 204
	// 401 401 429 429
}
