// Package adapter is what is peculiar to echo v4.
package adapter

import (
	"cmp"
	"errors"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/internal/echohttp"
)

// Echo is an echohttp.Version.
type Echo struct{}

// Response implements echohttp.Version.
func (Echo) Response(c echo.Context) http.ResponseWriter { return c.Response() }

// Replace implements echohttp.Version.
func (Echo) Replace(c echo.Context, w http.ResponseWriter) (restore func()) {
	original := c.Response()
	response := echo.NewResponse(w, c.Echo())
	response.Status = original.Status
	c.SetResponse(response)
	return func() { c.SetResponse(original) }
}

// Refuse implements echohttp.Version.
func (Echo) Refuse(c echo.Context, e *echohttp.Error) error {
	response := c.Response()
	response.Before(func() { e.Label(response.Header()) })
	return &echo.HTTPError{Code: e.Status(), Message: e.Problem(), Internal: e}
}

// Status implements echohttp.Version.
func (e Echo) Status(c echo.Context, err error) int {
	if err == nil || c.Response().Committed {
		return c.Response().Status
	}
	return cmp.Or(e.StatusOf(err), http.StatusInternalServerError)
}

// Render implements echohttp.Version.
func (Echo) Render(c echo.Context, err error) { c.Error(err) }

// StatusOf implements echohttp.Version.
func (Echo) StatusOf(err error) int {
	var e *echo.HTTPError
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// Log implements echohttp.Version.
func (Echo) Log(c echo.Context, err error) { c.Logger().Error(err) }

// Routed reports whether a request has matched a route. Groups with middleware have routes of their own
// for what matches no other, which do not count.
func Routed(c echo.Context) bool {
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
