// Package adapter is what is peculiar to echo v5.
package adapter

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/internal/echohttp"
)

// Echo is an echohttp.Version.
type Echo struct{}

// Response implements echohttp.Version.
func (Echo) Response(c *echo.Context) http.ResponseWriter { return c.Response() }

// Replace implements echohttp.Version. Echo's own Response is put before w, so that error handlers
// know whether the answer has begun. The one that is behind w learns of it when the answer is sent.
func (Echo) Replace(c *echo.Context, w http.ResponseWriter) (restore func()) {
	original := c.Response()
	response := echo.NewResponse(w, c.Logger())
	response.Status = http.StatusOK
	c.SetResponse(response)
	return func() { c.SetResponse(original) }
}

// Refuse implements echohttp.Version.
func (Echo) Refuse(c *echo.Context, e *echohttp.Error) error {
	if response, err := echo.UnwrapResponse(c.Response()); err == nil {
		response.Before(func() { e.Label(response.Header()) })
	}
	return e
}

// Status implements echohttp.Version.
func (Echo) Status(c *echo.Context, err error) int {
	_, status := echo.ResolveResponseStatus(c.Response(), err)
	return status
}

// Render implements echohttp.Version.
func (Echo) Render(c *echo.Context, err error) { c.Echo().HTTPErrorHandler(c, err) }

// StatusOf implements echohttp.Version.
func (Echo) StatusOf(err error) int { return echo.StatusCode(err) }

// Log implements echohttp.Version.
func (Echo) Log(c *echo.Context, err error) { c.Logger().Error(err.Error()) }

// Routed reports whether a request has matched a route. Groups with middleware have routes of their own
// for what matches no other, which do not count.
func Routed(c *echo.Context) bool {
	switch route := c.RouteInfo(); {
	case route.Method == echo.RouteNotFound, route.Name == echo.NotFoundRouteName, route.Name == echo.MethodNotAllowedRouteName:
		return false
	default:
		return c.Path() != ""
	}
}
