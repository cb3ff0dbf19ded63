package exclusive_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
)

func put(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPut, path, nil))
	return w
}

// Requests for the same cart run one after the other, and wait for up to two seconds.
func Example_takeTurns() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.PUT("/carts/:id", exclusive.New(carts, ginmw.ByParam("id"), policy.Wait(2*time.Second)), func(c *gin.Context) {
		ctx := c.Request.Context()
		lease, _ := lock.FromContext(ctx)
		// save(ctx, cart, lease.Fence())
		c.String(http.StatusOK, "cart %s, locked: %t", c.Param("id"), lease.Fence().Number > 0)
	})
	fmt.Println(put(r, "/carts/42").Body)
	// Output: cart 42, locked: true
}

// Reads take no lock, nor do probes.
func Example_onlyWrites() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.Use(exclusive.New(carts, ginmw.ByParam("id"),
		ginmw.Unless(func(c *gin.Context) bool { return c.Request.Method == http.MethodGet })))
	r.GET("/carts/:id", func(c *gin.Context) { c.Status(http.StatusOK) })
	r.PUT("/carts/:id", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	fmt.Println(put(r, "/carts/42").Code)
	// Output: 204
}
