package middleware_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/wiring"
)

// The wiring mistakes that would cost money do not compile. With echo, the likeliest is to take what is
// for the other version.
func TestWiring(t *testing.T) {
	for _, f := range []wiring.Framework{
		{
			Package: "nethttp", Other: "ginmw", Imports: `"net/http"`, Request: "*http.Request",
			Deny: "func(http.ResponseWriter, *http.Request, policy.Denial) {}",
		},
		{
			Package: "ginmw", Other: "nethttp", Imports: `"github.com/gin-gonic/gin"`, Request: "*gin.Context",
			Deny: "func(*gin.Context, policy.Denial) {}",
		},
		{
			Package: "echomw", Other: "echov5mw", Imports: `"github.com/labstack/echo/v4"`, Request: "echo.Context",
			Deny: "func(echo.Context, policy.Denial) error { return nil }",
		},
		{
			Package: "echov5mw", Other: "echomw", Imports: `"github.com/labstack/echo/v5"`, Request: "*echo.Context",
			Deny: "func(*echo.Context, policy.Denial) error { return nil }",
		},
		{
			Package: "grpcmw", Other: "nethttp", Request: "*grpcmw.Call",
			Deny: "func(*grpcmw.Call, policy.Denial) error { return nil }", RPC: true,
		},
	} {
		t.Run(f.Package, func(t *testing.T) { wiring.Compile(t, f) })
	}
}
