package fenced_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/fenced"
)

func put(e *echo.Echo, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPut, path, nil)
	if token != "" {
		r.Header.Set(fence.Header, token)
	}
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// The request of a paused holder arrives after the next holder has written. The handler gets the
// fence, so that the database can compare it again.
func Example_lateRequest() {
	carts, err := memfence.New() // redisfence, where several processes work on the carts
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.PUT("/carts/:id", func(c echo.Context) error {
		token, _ := fence.FromContext(c.Request().Context())
		// save(ctx, cart, token)
		return c.String(http.StatusOK, "cart "+c.Param("id")+", written with fence "+token.String())
	}, fenced.New(carts, echomw.ByParam("id")))
	fmt.Println(put(e, "/carts/42", "34").Body)
	fmt.Println("the paused holder:", put(e, "/carts/42", "33").Code)
	fmt.Println("without a lock:", put(e, "/carts/42", "").Code)
	// Output:
	// cart 42, written with fence 34
	// the paused holder: 412
	// without a lock: 428
}
