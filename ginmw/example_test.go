package ginmw_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
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
