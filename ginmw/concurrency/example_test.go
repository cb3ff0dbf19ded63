package concurrency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
)

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// Four reports of a tenant at a time, on all instances together. Up to ten more wait, for up to two
// seconds.
func Example_atMostFourAtATime() {
	reports, err := semaphore.New(memstore.New(), "reports", 4, semaphore.WithMaxWaiting(10))
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.GET("/reports/:tenant", concurrency.New(reports, ginmw.ByParam("tenant"), policy.Wait(2*time.Second)),
		func(c *gin.Context) { c.String(http.StatusOK, "the report of %s", c.Param("tenant")) })
	fmt.Println(get(r, "/reports/acme").Body)
	// Output: the report of acme
}

// A bulkhead: this process resizes two pictures at a time, so that a burst of requests does not
// slow its other handlers.
func Example_bulkhead() {
	pictures, err := semaphore.New(memstore.New(), "pictures", 2) // in memory: it counts this process alone
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.GET("/pictures/:id", concurrency.New(pictures, ginmw.Global(), policy.Wait(time.Second)),
		func(c *gin.Context) {
			permit, _ := semaphore.FromContext(c.Request.Context())
			c.String(http.StatusOK, "a permit of weight %d", permit.Weight())
		})
	fmt.Println(get(r, "/pictures/7").Body)
	// Output: a permit of weight 1
}
