package ginmw_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/mwtest/wiring"
)

// The wiring mistakes that would cost money do not compile.
func TestWiring(t *testing.T) {
	wiring.Compile(t, wiring.Framework{
		Package: "ginmw", Other: "nethttp",
		Imports: `"github.com/gin-gonic/gin"`,
		Request: "*gin.Context",
		Deny:    "func(*gin.Context, policy.Denial) {}",
	})
}
