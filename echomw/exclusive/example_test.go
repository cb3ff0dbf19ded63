package exclusive_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/exclusive"
)

func put(e *echo.Echo, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(http.MethodPut, path, nil))
	return w
}

// Requests for the same cart of a user run one after the other, and wait for up to two seconds.
// Carts of other users with the same number are other locks.
func Example_takeTurns() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc { // yours goes here
		return func(c echo.Context) error {
			c.Set("user", "alice")
			return next(c)
		}
	})
	oneAtATime := exclusive.New(carts, echomw.Join(echomw.ByContext("user"), echomw.ByParam("id")), policy.Wait(2*time.Second))
	e.PUT("/carts/:id", func(c echo.Context) error {
		lease, _ := lock.FromContext(c.Request().Context())
		// save(ctx, cart, lease.Fence())
		return c.String(http.StatusOK, "locked: "+lease.Key())
	}, oneAtATime)
	fmt.Println(put(e, "/carts/42").Body)
	// Output: locked: 5:alice2:42
}

// Reads take no lock.
func Example_onlyWrites() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	e := echo.New()
	group := e.Group("/carts", exclusive.New(carts, echomw.ByParam("id"),
		echomw.Unless(func(c echo.Context) bool { return c.Request().Method == http.MethodGet })))
	handler := func(c echo.Context) error {
		_, locked := lock.FromContext(c.Request().Context())
		return c.String(http.StatusOK, fmt.Sprint("locked: ", locked))
	}
	group.GET("/:id", handler)
	group.PUT("/:id", handler)

	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/carts/42", nil))
	fmt.Println(w.Body)
	fmt.Println(put(e, "/carts/42").Body)
	// Output:
	// locked: false
	// locked: true
}
