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
}

// Unless has a middleware leave alone the requests for which skip returns true.
func Unless(skip func(c *gin.Context) bool) Option {
	if skip == nil {
		panic("ginmw: Unless: nil function")
	}
	return unless{skip}
}

type unless struct{ skip func(*gin.Context) bool }

func (u unless) ApplyRateLimit(s *setting.RateLimit)     { s.Skip = u.skip }
func (u unless) ApplyIdempotency(s *setting.Idempotency) { s.Skip = u.skip }
func (u unless) ApplyExclusive(s *setting.Exclusive)     { s.Skip = u.skip }
func (u unless) ApplyConcurrency(s *setting.Concurrency) { s.Skip = u.skip }
