package ginmw

import (
	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Option is an option of every gin middleware of this module.
type Option interface{ setting.HTTPOption }

// Unless makes a middleware skip the requests for which skip returns true.
func Unless(skip func(c *gin.Context) bool) Option { return httpmw.Unless("ginmw", skip) }

// OnDeny makes deny answer the refusals of a middleware, instead of a problem body. The chain has
// been aborted, and the header fields of the refusal are set; deny writes status and body. The
// denial's Reason says which policy refused, and why.
func OnDeny(deny func(c *gin.Context, d policy.Denial)) Option {
	return setting.Given("ginmw: OnDeny", deny, func(s *setting.Settings) { s.Deny = deny })
}
