package echomw_test

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/echotest"
)

// Around implements mwtest.Natively. Echo's Timeout is not among them: its documentation says that
// it races with the handlers that it gives up.
func (framework) Around() map[string]any {
	return map[string]any{
		"middleware.Recover":        middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true}),
		"middleware.ContextTimeout": middleware.ContextTimeout(mwtest.Briefly),
		"what renders errors":       echotest.Renders(version()),
	}
}

// Ends implements mwtest.Natively.
func (framework) Ends() map[string]any {
	return echotest.Ends(version(), map[string]func(echo.Context) error{
		"another writer": func(c echo.Context) error {
			c.Response().Writer = struct{ http.ResponseWriter }{c.Response().Writer}
			return c.String(http.StatusCreated, "done")
		},
	})
}
