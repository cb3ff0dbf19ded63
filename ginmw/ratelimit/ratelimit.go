// Package ratelimit limits the rate of requests of each key, as gin middleware:
//
//	r.Use(ratelimit.New(limiter, ginmw.ByClientIP(clientip.Direct())))
package ratelimit

import (
	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that takes one token of the request's key, and answers without the handler
// if there is none:
//
//   - 429 with Retry-After over the limit;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, or if the key function fails;
//   - 503 with Retry-After if the store is unavailable, unless policy.FailOpen.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.New] says.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, ginmw.Unless and
// ginmw.OnDeny. New panics if limiter or key is nil.
func New(limiter *tokenbucket.Limiter, key ginmw.KeyFunc, opts ...policy.RateLimitOption) gin.HandlerFunc {
	return adapter.Handler(httpmw.RateLimit(adapter.Gin{}, limiter, key, opts))
}
