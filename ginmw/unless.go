package ginmw

import (
	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Option is an option of every gin middleware of this module.
type Option interface {
	setting.RateLimitOption
	setting.IdempotencyOption
	setting.ExclusiveOption
	setting.ConcurrencyOption
	setting.FencedOption
}

// Unless has a middleware leave alone the requests for which skip returns true.
func Unless(skip func(c *gin.Context) bool) Option {
	if skip == nil {
		panic("ginmw: Unless: nil function")
	}
	return setting.Option(func(s *setting.Common) { s.Skip = skip })
}
