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
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.New] says. While it runs, a
// tokenbucket.PlanFunc also finds in its context the values that earlier middleware has put into
// gin's context with c.Set under a string.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, policy.HideLimits,
// policy.RetryJitter, policy.Shadow, policy.ChargeStatus, policy.Hold, [Costs], ginmw.Unless,
// ginmw.OnError and ginmw.OnDeny, and the options of package policy for every middleware. New
// panics if limiter or key is nil.
func New(limiter *tokenbucket.Limiter, key ginmw.KeyFunc, opts ...policy.RateLimitOption) gin.HandlerFunc {
	return adapter.Handler(httpmw.RateLimit(adapter.Gin{}, limiter, key, opts))
}

// Usage returns a handler that answers with the state of a client's limits, and charges nothing:
//
//	r.GET("/usage", ratelimit.Usage(limiter, byUser))
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Usage] says.
//
// Options are ginmw.OnError, ginmw.OnDeny and the options of package policy for every middleware.
// Usage panics if limiter or key is nil, and with ginmw.Unless.
func Usage(limiter *tokenbucket.Limiter, key ginmw.KeyFunc, opts ...ginmw.Option) gin.HandlerFunc {
	return adapter.Answer(httpmw.Usage(adapter.Gin{}, limiter, key, opts))
}

// Costs charges a request by its cost instead of one token: by the estimate, until the handler
// reports the cost to the reservation that tokenbucket.FromContext finds in the request's context.
// See [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Costs]. Settlements that fail go to
// OnError. Once the client has left they are only in the metric lockkeeper.rate_limit.settlements,
// since gin reuses its context. Costs panics if estimate is nil.
func Costs(estimate func(c *gin.Context) tokenbucket.Cost) policy.RateLimitOption {
	return httpmw.Costs(estimate)
}
