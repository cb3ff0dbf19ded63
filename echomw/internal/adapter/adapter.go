// Package adapter adapts middleware to echo v4.
package adapter

import (
	"cmp"
	"errors"
	"net/http"
	"reflect"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Handler returns a middleware in echo's form.
func Handler(m httpmw.Middleware[echo.Context]) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error { return m(c, next) }
	}
}

// Echo is a httpmw.ErrorAdapter and a httpmw.RouteAdapter.
type Echo struct{}

// Hooks implements httpmw.Adapter.
func (Echo) Hooks(name string, s setting.Settings) httpmw.Hooks[echo.Context] {
	h := httpmw.HooksOf[echo.Context](name, s)
	if deny := setting.Hook[func(echo.Context, policy.Denial) error](name, s.Deny); deny != nil {
		h.Deny = func(c echo.Context, d policy.Denial) (int, error) {
			err := deny(c, d)
			return status(c, err), err
		}
	}
	return h
}

// Request implements httpmw.Adapter.
func (Echo) Request(c echo.Context) *http.Request { return c.Request() }

// WithRequest implements httpmw.Adapter.
func (Echo) WithRequest(c echo.Context, r *http.Request) echo.Context {
	c.SetRequest(r)
	return c
}

// Header implements httpmw.Adapter.
func (Echo) Header(c echo.Context) http.Header { return c.Response().Header() }

// Writer implements httpmw.Adapter.
func (Echo) Writer(c echo.Context) http.ResponseWriter { return c.Response() }

// Capture implements httpmw.Adapter.
func (Echo) Capture(c echo.Context, w *httpmw.Capture) (captured echo.Context, restore func(current bool)) {
	original := c.Response()
	response := echo.NewResponse(w, c.Echo())
	response.Status = original.Status
	c.SetResponse(response)
	return c, func(current bool) {
		if current { // otherwise later writes to the capture pass through, once it has been sent
			c.SetResponse(original)
		}
	}
}

// Observe implements httpmw.Adapter.
func (Echo) Observe(c echo.Context, o *httpmw.Observer) (observed echo.Context, restore func()) {
	response := c.Response()
	o.ResponseWriter = response.Writer
	response.Writer = o
	return c, func() { response.Writer = o.ResponseWriter }
}

// Current implements httpmw.Adapter. Echo reuses a context when its request is over.
func (Echo) Current(_ echo.Context, r *http.Request) bool { return r.Context().Err() == nil }

// End implements httpmw.Adapter: a handler that is not called does not run.
func (Echo) End(echo.Context) bool { return true }

// Refuse implements httpmw.Adapter. It returns an error, with which the application's error handler
// answers.
func (Echo) Refuse(c echo.Context, d policy.Denial) (code int, err error) {
	denied, response := httpmw.NewError(d), c.Response()
	response.Before(func() { denied.Label(response.Header()) })
	err = httpError(denied)
	return status(c, err), err
}

// Renders implements httpmw.ErrorAdapter. An application that keeps echo's own error handler may
// have middleware for errors in which that finds no status.
func (Echo) Renders(c echo.Context, err error) bool {
	return ownStatus(err) != 0 || reflect.ValueOf(c.Echo().HTTPErrorHandler).Pointer() != ownHandler
}

// ownHandler is the code of echo's own error handler.
var ownHandler = reflect.ValueOf(echo.New().HTTPErrorHandler).Pointer()

// ownStatus returns the status that echo's own error handler finds in an error, and 0 if it finds
// none: then it answers 500. It does not look into errors that wrap one of echo's.
func ownStatus(err error) int {
	outer, ok := err.(*echo.HTTPError) //nolint:errorlint // as echo does
	if !ok {
		return 0
	}
	if inner, ok := outer.Internal.(*echo.HTTPError); ok { //nolint:errorlint // as echo does
		return inner.Code
	}
	return outer.Code
}

// Denied implements httpmw.ErrorAdapter.
func (Echo) Denied(d policy.Denial) error { return httpError(httpmw.NewError(d)) }

func httpError(denied *httpmw.Error) *echo.HTTPError {
	return &echo.HTTPError{Code: denied.Status(), Message: denied.Problem(), Internal: denied}
}

// status returns the status of the answer: the middleware's, or the one that echo's own error
// handler makes of the returned error.
func status(c echo.Context, err error) int {
	if err == nil || c.Response().Committed {
		return c.Response().Status
	}
	return cmp.Or(ownStatus(err), http.StatusInternalServerError)
}

// Log implements httpmw.Adapter.
func (Echo) Log(c echo.Context, _ *telemetry.Repeated, err error) { c.Logger().Error(err) }

// Render implements httpmw.ErrorAdapter.
func (Echo) Render(c echo.Context, err error) { c.Error(err) }

// StatusOf implements httpmw.ErrorAdapter.
func (Echo) StatusOf(err error) int {
	var e *echo.HTTPError
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// Path implements httpmw.RouteAdapter.
func (Echo) Path(c echo.Context) string { return c.Path() }

// Routed implements httpmw.RouteAdapter. The catch-all routes of groups with middleware do not
// count.
func (Echo) Routed(c echo.Context) bool {
	path := c.Path()
	if path == "" {
		return false
	}
	real := func(r *echo.Route) bool { return r.Path == path && r.Method != echo.RouteNotFound }
	if slices.ContainsFunc(c.Echo().Routes(), real) {
		return true
	}
	for _, router := range c.Echo().Routers() { // of hosts
		if slices.ContainsFunc(router.Routes(), real) {
			return true
		}
	}
	return false
}

// Param implements httpmw.RouteAdapter.
func (Echo) Param(c echo.Context, name string) (string, bool) {
	value := c.Param(name)
	return value, value != "" || keys.Coloned(c.Path()).Has(name)
}

// Value implements httpmw.RouteAdapter.
func (Echo) Value(c echo.Context, key any) (any, bool) {
	name, ok := key.(string)
	if !ok {
		return nil, false
	}
	value := c.Get(name)
	return value, value != nil
}
