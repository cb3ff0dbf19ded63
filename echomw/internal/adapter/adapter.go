// Package adapter is what is peculiar to echo v4.
package adapter

import (
	"net/http"

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

// Render implements echohttp.Version.
func (Echo) Render(c echo.Context, err error) { c.Error(err) }

// Log implements echohttp.Version.
func (Echo) Log(c echo.Context, err error) { c.Logger().Error(err) }

// AsSent reports whether the parameters of the route are from the path as it was sent. Otherwise they are
// from the one that net/http has decoded.
func AsSent(c echo.Context) bool { return c.Request().URL.RawPath != "" }
