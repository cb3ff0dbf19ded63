package echomw_test

import (
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/lockkeeper/lockkeeper/internal/mwtest"
)

// Around implements mwtest.Natively. Echo's Timeout is not among them: its documentation says that it races
// with the handlers that it gives up, and so it does.
func (framework) Around() map[string]any {
	return map[string]any{
		"middleware.Recover":        middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true}),
		"middleware.ContextTimeout": middleware.ContextTimeout(mwtest.Briefly),
		"what renders errors": echo.MiddlewareFunc(func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c echo.Context) error {
				if err := next(c); errors.Is(err, errDeclined) {
					return c.String(http.StatusPaymentRequired, "declined")
				} else if err != nil {
					return err
				}
				return nil
			}
		}),
	}
}

var errDeclined = errors.New("declined")

// Ends implements mwtest.Natively.
func (framework) Ends() map[string]any {
	all := map[string]any{}
	for name, end := range map[string]echo.HandlerFunc{
		"an error":               func(echo.Context) error { return errDeclined },
		"an error with a status": func(echo.Context) error { return echo.NewHTTPError(http.StatusPaymentRequired, "declined") },
		"an error behind an answer": func(c echo.Context) error {
			_ = c.String(http.StatusOK, "done")
			return errDeclined
		},
		"an answer": func(c echo.Context) error { return c.String(http.StatusCreated, "done") },
		"another writer": func(c echo.Context) error {
			c.Response().Writer = struct{ http.ResponseWriter }{c.Response().Writer}
			return c.String(http.StatusCreated, "done")
		},
		"the context's error": func(c echo.Context) error {
			<-c.Request().Context().Done()
			return c.Request().Context().Err()
		},
		"JSON that cannot be encoded": func(c echo.Context) error { return c.JSON(http.StatusOK, func() {}) },
	} {
		all[name] = echo.MiddlewareFunc(func(echo.HandlerFunc) echo.HandlerFunc { return end })
	}
	return all
}
