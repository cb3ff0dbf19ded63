// Package ratelimit limits the rate of requests of each key, as gin middleware:
//
//	r.Use(ratelimit.New(limiter, ginmw.ByClientIP(clientip.Direct())))
//
// The mechanism behind it is a token bucket: package [tokenbucket].
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
//   - 429 with Retry-After over the limit, or while the key is held;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, if the key function fails,
//     or if the same limiter is in the chain twice with the same key;
//   - 503 with Retry-After if the store is unavailable, unless policy.FailOpen.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.New] says. A
// tokenbucket.PlanFunc finds in its context, while it runs, also what earlier middleware has put
// into gin's context with c.Set under a string.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, policy.HideLimits,
// policy.RetryJitter, policy.Shadow, policy.ChargeStatus, policy.Hold, [Costs], ginmw.Unless and
// ginmw.OnDeny, and those of package policy for every middleware. New panics if limiter or key is
// nil.
func New(limiter *tokenbucket.Limiter, key ginmw.KeyFunc, opts ...policy.RateLimitOption) gin.HandlerFunc {
	return adapter.Handler(httpmw.RateLimit(adapter.Gin{}, limiter, key, opts))
}

// Usage returns a handler that tells a client how its limits stand, and charges nothing:
//
//	r.GET("/usage", ratelimit.Usage(limiter, byUser))
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Usage] says.
//
// Options are ginmw.OnDeny and those of package policy for every middleware. Usage panics if
// limiter or key is nil, and with ginmw.Unless.
func Usage(limiter *tokenbucket.Limiter, key ginmw.KeyFunc, opts ...ginmw.Option) gin.HandlerFunc {
	return adapter.Answer(httpmw.Usage(adapter.Gin{}, limiter, key, opts))
}

// Costs makes a request cost what estimate returns, instead of one token, until the handler reports
// to tokenbucket.FromContext what it has cost, as
// [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Costs] says. The context is that of the
// request. Settlements that fail go to OnError. Once the client has left they are in the metric
// lockkeeper.rate_limit.settlements alone, since gin reuses its context. Costs panics if estimate
// is nil.
func Costs(estimate func(c *gin.Context) tokenbucket.Cost) policy.RateLimitOption {
	return httpmw.Costs(estimate)
}
