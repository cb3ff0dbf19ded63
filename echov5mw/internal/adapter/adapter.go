// Package adapter adapts middleware to echo v5.
package adapter

import (
	"net/http"
	"reflect"
	"runtime"
	"strings"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Handler returns a middleware in echo's form.
func Handler(m httpmw.Middleware[*echo.Context]) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error { return m(c, next) }
	}
}

// Echo is a httpmw.ErrorAdapter and a httpmw.RouteAdapter.
type Echo struct{}

// Hooks implements httpmw.Adapter.
func (Echo) Hooks(name string, s setting.Settings) httpmw.Hooks[*echo.Context] {
	h := httpmw.HooksOf[*echo.Context](name, s)
	if deny := setting.Hook[func(*echo.Context, policy.Denial) error](name, s.Deny); deny != nil {
		h.Deny = func(c *echo.Context, d policy.Denial) (int, error) {
			err := deny(c, d)
			return status(c, err), err
		}
	}
	return h
}

// Request implements httpmw.Adapter.
func (Echo) Request(c *echo.Context) *http.Request { return c.Request() }

// WithRequest implements httpmw.Adapter.
func (Echo) WithRequest(c *echo.Context, r *http.Request) *echo.Context {
	c.SetRequest(r)
	return c
}

// Header implements httpmw.Adapter.
func (Echo) Header(c *echo.Context) http.Header { return c.Response().Header() }

// Writer implements httpmw.Adapter.
func (Echo) Writer(c *echo.Context) http.ResponseWriter { return c.Response() }

// Capture implements httpmw.Adapter. Echo's own Response is put before w, so that error handlers
// know whether the answer has begun. The Response behind w begins when the answer is sent.
func (Echo) Capture(c *echo.Context, w *httpmw.Capture) (captured *echo.Context, restore func(current bool)) {
	original := c.Response()
	response := echo.NewResponse(w, c.Logger())
	response.Status = http.StatusOK
	c.SetResponse(response)
	return c, func(current bool) {
		if current { // otherwise later writes to the capture pass through, once it has been sent
			c.SetResponse(original)
		}
	}
}

// Observe implements httpmw.Adapter. The observer is in front of all writers: one behind it, such
// as echo's Gzip, may keep the answer back.
func (Echo) Observe(c *echo.Context, o *httpmw.Observer) (observed *echo.Context, restore func()) {
	outer := c.Response()
	o.ResponseWriter = outer
	c.SetResponse(o)
	return c, func() { c.SetResponse(outer) }
}

// Current implements httpmw.Adapter. Echo reuses a context when its request is over.
func (Echo) Current(_ *echo.Context, r *http.Request) bool { return r.Context().Err() == nil }

// End implements httpmw.Adapter: a handler that is not called does not run.
func (Echo) End(*echo.Context) bool { return true }

// Refuse implements httpmw.Adapter. It returns an error, with which the application's error handler
// answers.
func (Echo) Refuse(c *echo.Context, d policy.Denial) (code int, err error) {
	denied := httpmw.NewError(d)
	if response, err := echo.UnwrapResponse(c.Response()); err == nil {
		response.Before(func() { denied.Label(response.Header()) })
	}
	return status(c, denied), denied
}

// Renders implements httpmw.ErrorAdapter. Echo's own error handler answers 500 to an error without
// a status, so an application that keeps it may have middleware for its errors.
func (e Echo) Renders(c *echo.Context, err error) bool {
	return e.StatusOf(err) != 0 || !isOwn(c.Echo().HTTPErrorHandler)
}

// isOwn reports whether an error handler is echo's own, with any argument. A copy that the compiler
// makes in another function keeps this name.
func isOwn(h echo.HTTPErrorHandler) bool {
	code := runtime.FuncForPC(reflect.ValueOf(h).Pointer())
	return code != nil && strings.Contains(code.Name(), "DefaultHTTPErrorHandler.func")
}

// Denied implements httpmw.ErrorAdapter.
func (Echo) Denied(d policy.Denial) error { return httpmw.NewError(d) }

// status returns the status of the answer: the middleware's, or the one that echo's own error
// handler makes of the returned error.
func status(c *echo.Context, err error) int {
	_, status := echo.ResolveResponseStatus(c.Response(), err)
	return status
}

// Log implements httpmw.Adapter.
func (Echo) Log(c *echo.Context, _ *telemetry.Repeated, err error) { c.Logger().Error(err.Error()) }

// Render implements httpmw.ErrorAdapter.
func (Echo) Render(c *echo.Context, err error) { c.Echo().HTTPErrorHandler(c, err) }

// StatusOf implements httpmw.ErrorAdapter.
func (Echo) StatusOf(err error) int { return echo.StatusCode(err) }

// Path implements httpmw.RouteAdapter.
func (Echo) Path(c *echo.Context) string { return c.Path() }

// Routed implements httpmw.RouteAdapter. The catch-all routes of groups with middleware do not
// count.
func (Echo) Routed(c *echo.Context) bool {
	switch route := c.RouteInfo(); {
	case route.Method == echo.RouteNotFound, route.Name == echo.NotFoundRouteName, route.Name == echo.MethodNotAllowedRouteName:
		return false
	default:
		return c.Path() != ""
	}
}

// Param implements httpmw.RouteAdapter.
func (Echo) Param(c *echo.Context, name string) (string, bool) {
	value := c.Param(name)
	return value, value != "" || keys.Coloned(c.Path()).Has(name)
}

// Value implements httpmw.RouteAdapter.
func (Echo) Value(c *echo.Context, key any) (any, bool) {
	name, ok := key.(string)
	if !ok {
		return nil, false
	}
	value := c.Get(name)
	return value, value != nil
}
