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

// Render implements echohttp.Version.
func (Echo) Render(c *echo.Context, err error) { c.Echo().HTTPErrorHandler(c, err) }

// Log implements echohttp.Version.
func (Echo) Log(c *echo.Context, err error) { c.Logger().Error(err.Error()) }

// AsSent reports whether the parameters of the route are from the path as it was sent. Otherwise they have
// been decoded, by net/http or by a router that was told to. They are as sent if they make up that path.
func AsSent(c *echo.Context) bool {
	sent := c.Request().URL.RawPath
	if sent == "" {
		return false
	}
	var values []any
	for _, p := range c.PathValues() {
		values = append(values, p.Value)
	}
	return echo.RouteInfo{Path: c.Path()}.Reverse(values...) == sent
}
