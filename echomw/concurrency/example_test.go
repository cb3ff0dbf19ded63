package concurrency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/concurrency"
)

func get(e *echo.Echo, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// Four reports of a tenant at a time, on all instances together. Up to ten more wait, for up to two
// seconds.
func Example_perTenant() {
	reports, err := semaphore.New(memstore.New(), "reports", 4, semaphore.WithMaxWaiting(10))
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.GET("/reports/:tenant", func(c echo.Context) error {
		permit, _ := semaphore.FromContext(c.Request().Context())
		return c.String(http.StatusOK, "the report of "+permit.Key())
	}, concurrency.New(reports, echomw.ByParam("tenant"), policy.Wait(2*time.Second)))
	fmt.Println(get(e, "/reports/acme").Body)
	// Output: the report of acme
}

// A bulkhead: this process has two pictures in memory at a time.
func Example_bulkhead() {
	pictures, err := semaphore.New(memstore.New(), "pictures", 2) // in memory: it counts this process alone
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.GET("/pictures/:id", func(c echo.Context) error { return c.NoContent(http.StatusNoContent) },
		concurrency.New(pictures, echomw.Global(), policy.Wait(time.Second)))
	fmt.Println(get(e, "/pictures/7").Code)
	// Output: 204
}
