package fenced_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/fenced"
)

func put(h http.Handler, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPut, path, nil)
	if token != "" {
		r.Header.Set(fence.Header, token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// The request of a paused holder arrives after the next holder has written. The handler gets the
// fence, so that the database can compare it again.
func Example_lateRequest() {
	carts, err := memfence.New() // redisfence, where several processes work on the carts
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.PUT("/carts/:id", fenced.New(carts, ginmw.ByParam("id")), func(c *gin.Context) {
		token, _ := fence.FromContext(c.Request.Context())
		// save(ctx, cart, token)
		c.String(http.StatusOK, "cart %s, written with fence %v", c.Param("id"), token)
	})
	fmt.Println(put(r, "/carts/42", "34").Body)
	fmt.Println("the paused holder:", put(r, "/carts/42", "33").Code)
	fmt.Println("without a lock:", put(r, "/carts/42", "").Code)
	// Output:
	// cart 42, written with fence 34
	// the paused holder: 412
	// without a lock: 428
}

// During a rollout, requests of clients that do not send fences yet pass.
func Example_rollout() {
	carts, err := memfence.New()
	if err != nil {
		panic(err)
	}
	r := gin.New()
	r.PUT("/carts/:id", fenced.New(carts, ginmw.ByParam("id"), policy.AllowUnfenced()), func(c *gin.Context) {
		_, ok := fence.FromContext(c.Request.Context())
		c.String(http.StatusOK, "fenced: %t", ok)
	})
	fmt.Println(put(r, "/carts/42", "34").Body)
	fmt.Println(put(r, "/carts/42", "").Body)
	fmt.Println(put(r, "/carts/42", "33").Code)
	// Output:
	// fenced: true
	// fenced: false
	// 412
}
