package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

func post(h http.Handler, key string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "/checkout", strings.NewReader(`{"sku":"tea"}`))
	req.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func authenticate(c *gin.Context) { c.Set("user", "alice") }

// A checkout that charges once, however often the button is pressed.
func Example_checkout() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	charges := 0
	r := gin.New()
	r.Use(authenticate)
	r.POST("/checkout", idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user")), policy.Required()),
		func(c *gin.Context) {
			charges++
			c.String(http.StatusCreated, "order %d", charges)
		})

	for range 2 {
		w := post(r, "8e03978e-40d5-43dd-bc93-6894a57f9324")
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get("Idempotency-Replayed") == "true")
	}
	fmt.Println("charges:", charges)
	// Output:
	// 201 order 1 replayed: false
	// 201 order 1 replayed: true
	// charges: 1
}

// A handler marks where its effects begin.
func Example_markTheEffect() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.Use(authenticate)
	r.POST("/checkout", idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user"))), func(c *gin.Context) {
		ctx := c.Request.Context()
		attempt, _ := guard.FromContext(ctx)
		if err := attempt.MarkClean(ctx); err != nil { // nothing has happened yet
			_ = attempt.Abandon(ctx)
			c.Status(http.StatusServiceUnavailable)
			return
		}
		// ... read prices, check the stock ...
		if err := attempt.MarkDirty(ctx); err != nil { // do not charge unless this is recorded
			_ = attempt.Abandon(ctx)
			c.Status(http.StatusServiceUnavailable)
			return
		}
		c.String(http.StatusCreated, "charged in attempt %d", attempt.Number())
	})
	fmt.Println(post(r, "k").Body)
	// Output: charged in attempt 1
}
