package echov5mw_test

import (
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/echotest"
)

// Around implements mwtest.Natively.
func (framework) Around() map[string]any {
	return map[string]any{
		"middleware.Recover":        middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true}),
		"middleware.ContextTimeout": middleware.ContextTimeout(mwtest.Briefly),
		"what renders errors":       echotest.Renders(version(echo.RouterConfig{})),
	}
}

// Ends implements mwtest.Natively.
func (framework) Ends() map[string]any {
	return echotest.Ends(version(echo.RouterConfig{}), map[string]func(*echo.Context) error{
		"another writer": func(c *echo.Context) error {
			c.SetResponse(struct{ http.ResponseWriter }{c.Response()})
			return c.String(http.StatusCreated, "done")
		},
	})
}
