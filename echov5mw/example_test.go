package echov5mw_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/exclusive"
	"github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func do(e *echo.Echo, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	return w
}

// An application with one form for all its errors, and for those of this module.
func ExampleDenialOf_inAnErrorHandler() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1))
	if err != nil {
		panic(err)
	}
	e := echo.New()
	others := echo.DefaultHTTPErrorHandler(false)
	e.HTTPErrorHandler = func(c *echo.Context, err error) {
		denial, ok := echov5mw.DenialOf(err)
		if !ok {
			others(c, err)
			return
		}
		// Retry-After is set already. denial.Err is for a log, and not for the client.
		_ = c.JSON(denial.Status(), map[string]any{"error": denial.Reason, "ok": false})
	}
	e.GET("/", func(c *echo.Context) error { return c.NoContent(http.StatusNoContent) }, ratelimit.New(limiter, echov5mw.Global()))

	do(e, httptest.NewRequest(http.MethodGet, "/", nil))
	w := do(e, httptest.NewRequest(http.MethodGet, "/", nil))
	fmt.Print(w.Code, " ", w.Body)
	w = do(e, httptest.NewRequest(http.MethodGet, "/elsewhere", nil))
	fmt.Print(w.Code, " ", w.Body)
	// Output:
	// 429 {"error":"quota-exceeded","ok":false}
	// 404 {"message":"Not Found"}
}

// Two spellings of a path are the same cart, and the same lock.
func ExampleByParam_twoSpellings() {
	key := echov5mw.ByParam("id")
	e := echo.New()
	e.PUT("/carts/:id", func(c *echo.Context) error {
		fmt.Println(key(c))
		return nil
	})
	do(e, httptest.NewRequest(http.MethodPut, "/carts/a-b", nil))
	do(e, httptest.NewRequest(http.MethodPut, "/carts/a%2Db", nil))
	// Output:
	// a-b <nil>
	// a-b <nil>
}

// Each authenticated user has a limit, and other clients share that of their address.
func ExampleFirstOf_userOrAddress() {
	key := echov5mw.FirstOf(echov5mw.ByContext("user"), echov5mw.ByClientIP(clientip.Direct()))
	e := echo.New()
	e.GET("/", func(c *echo.Context) error {
		fmt.Println(key(c))
		c.Set("user", 7) // authentication does this
		fmt.Println(key(c))
		return nil
	})
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "203.0.113.7:49152"
	do(e, r)
	// Output:
	// 1:203.0.113.7 <nil>
	// 0:7 <nil>
}

// A lock that runs requests without its store, and reports the error: the answer is the handler's,
// so the error appears nowhere else.
func ExampleOnError_bypassed() {
	st := storetest.NewFaulty(memstore.New())
	carts, err := lock.New(st, "carts")
	if err != nil {
		panic(err)
	}
	e := echo.New()
	e.PUT("/carts/:id", func(c *echo.Context) error { return c.NoContent(http.StatusNoContent) },
		exclusive.New(carts, echov5mw.ByParam("id"), policy.RunUnprotected(), echov5mw.OnError(func(c *echo.Context, err error) {
			fmt.Println(c.Path(), "outage:", errors.Is(err, store.ErrUnavailable))
		})))

	st.Break(storetest.Any, storetest.Down) // an outage
	w := do(e, httptest.NewRequest(http.MethodPut, "/carts/42", nil))
	fmt.Println(w.Code, w.Header().Get("Lock-Status"))
	// Output:
	// /carts/:id outage: true
	// 204 bypassed
}

// A page for the refusals of a route. For those of the whole application, use an HTTPErrorHandler:
// see [echov5mw.DenialOf].
func ExampleOnDeny() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1))
	if err != nil {
		panic(err)
	}
	e := echo.New()
	deny := echov5mw.OnDeny(func(c *echo.Context, d policy.Denial) error {
		return c.HTML(d.Status(), "<h1>One moment, please</h1>")
	})
	hello := func(c *echo.Context) error { return c.String(http.StatusOK, "hello") }
	e.GET("/", hello, ratelimit.New(limiter, echov5mw.Global(), deny))
	for range 2 {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(w.Code, w.Body)
	}
	// Output:
	// 200 hello
	// 429 <h1>One moment, please</h1>
}
