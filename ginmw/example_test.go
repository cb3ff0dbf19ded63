package ginmw_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// A text instead of a problem body, for the refusals of every middleware that has the option.
func ExampleOnDeny() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1))
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.Global(), ginmw.OnDeny(func(c *gin.Context, d policy.Denial) {
		c.String(d.Status(), "slow down: %s", d.Reason)
	})))
	r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
	for range 2 {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 hello
	// 429 slow down: quota-exceeded
}

// What is keyed by the user stands behind authentication. In front of it there is no user yet, and
// requests are refused with 500: they would all share one limit otherwise.
func ExampleByContext() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(10))
	if err != nil {
		panic(err)
	}
	limit := ratelimit.New(limiter, ginmw.ByContext("user"), policy.Logger(slog.New(slog.DiscardHandler)))
	authenticate := func(c *gin.Context) { c.Set("user", "alice") } // yours, which refuses requests without a user
	for _, chain := range [][]gin.HandlerFunc{{authenticate, limit}, {limit, authenticate}} {
		r := gin.New()
		r.Use(chain...)
		r.GET("/", func(c *gin.Context) { c.String(http.StatusOK, "hello") })
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 500
}

// Each authenticated user has a limit, and other clients share that of their address.
func ExampleFirstOf() {
	key := ginmw.FirstOf(ginmw.ByContext("user"), ginmw.ByClientIP(clientip.Direct()))
	r := gin.New()
	r.GET("/", func(c *gin.Context) {
		fmt.Println(key(c))
		c.Set("user", 7) // authentication does this
		fmt.Println(key(c))
	})
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	request.RemoteAddr = "203.0.113.7:49152"
	r.ServeHTTP(httptest.NewRecorder(), request)
	// Output:
	// 1:203.0.113.7 <nil>
	// 0:7 <nil>
}
