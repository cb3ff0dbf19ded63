package ratelimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func get(e *echo.Echo, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func hello(c *echo.Context) error { return c.String(http.StatusOK, "hello") }

// Before authentication, every address has a burst of two. The header of an answer has the limit
// and its remaining tokens.
func Example_perClientAddress() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(60).Burst(2))
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.Use(ratelimit.New(limiter, echov5mw.ByClientIP(clientip.Direct())))
	e.GET("/", hello)

	first := get(e, "/")
	fmt.Println(first.Code, get(e, "/").Code, get(e, "/").Code)
	fmt.Println(first.Header().Get("RateLimit-Policy"), "and", first.Header().Get("RateLimit"))
	// Output:
	// 200 200 429
	// "api";q=2;w=2 and "api";r=1;t=1
}

// Searches are expensive, so a group of routes has a lower limit, for each of its routes. Health
// checks pass.
func Example_groupOfRoutes() {
	limiter, err := tokenbucket.New(memstore.New(), "search", tokenbucket.PerMinute(1))
	if err != nil {
		panic(err)
	}
	e := echo.New()
	health := echov5mw.Unless(func(c *echo.Context) bool { return strings.HasSuffix(c.Path(), "/health") })
	search := e.Group("/search", ratelimit.New(limiter, echov5mw.ByRoute(), health))
	for _, path := range []string{"/articles", "/customers", "/health"} {
		search.GET(path, hello)
	}
	for _, path := range []string{"/search/articles", "/search/articles", "/search/customers", "/search/health", "/search/health"} {
		fmt.Println(path, get(e, path).Code)
	}
	// Output:
	// /search/articles 200
	// /search/articles 429
	// /search/customers 200
	// /search/health 200
	// /search/health 200
}

// A request costs the tokens of its answer, for which an estimate is reserved until they are known.
func ExampleCosts() {
	limiter, err := tokenbucket.New(memstore.New(), "tokens", tokenbucket.PerDay(90_000))
	if err != nil {
		panic(err)
	}
	estimate := func(*echo.Context) tokenbucket.Cost { return tokenbucket.Cost{"tokens": 2_000} }
	e := echo.New()
	e.Use(ratelimit.New(limiter, echov5mw.Global(), ratelimit.Costs(estimate)))
	e.GET("/", func(c *echo.Context) error {
		if reservation, ok := tokenbucket.FromContext(c.Request().Context()); ok {
			_ = reservation.Use("tokens", 80)
		}
		return hello(c)
	})

	fmt.Println(get(e, "/").Code)
	d, err := limiter.Peek(context.Background(), "global")
	if err != nil {
		panic(err)
	}
	fmt.Println(d.Limits()[0].Remaining)
	// Output:
	// 200
	// 89920
}

// Only attempts to log in that fail count: what the application's error handler answers, if the
// handler returns an error.
func Example_logins() {
	limiter, err := tokenbucket.New(memstore.New(), "login", tokenbucket.PerHour(2))
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.Use(ratelimit.New(limiter, echov5mw.ByClientIP(clientip.Direct()), policy.ChargeStatus(http.StatusUnauthorized)))
	e.GET("/right", hello)
	e.GET("/wrong", func(*echo.Context) error { return echo.ErrUnauthorized })

	fmt.Println(get(e, "/right").Code, get(e, "/right").Code, get(e, "/right").Code)
	fmt.Println(get(e, "/wrong").Code, get(e, "/wrong").Code, get(e, "/wrong").Code, get(e, "/right").Code)
	// Output:
	// 200 200 200
	// 401 401 429 429
}
