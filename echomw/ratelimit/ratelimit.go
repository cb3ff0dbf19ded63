// Package ratelimit limits the rate of requests of each key, as echo v4 middleware:
//
//	e.Use(ratelimit.New(limiter, echomw.ByClientIP(clientip.Direct())))
//
// The mechanism behind it is a token bucket: package [tokenbucket].
package ratelimit

import (
	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that takes one token of the request's key, and returns an error without
// running the handler if there is none. The application's HTTPErrorHandler answers with it:
//
//   - 429 with Retry-After over the limit, or while the key is held;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, if the key function fails,
//     or if the same limiter is in the chain twice with the same key;
//   - 503 with Retry-After if the store is unavailable, unless policy.FailOpen.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.New] says. While it runs, a
// tokenbucket.PlanFunc also finds in its context the values that earlier middleware has put into
// echo's context with c.Set under a string.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, policy.HideLimits,
// policy.RetryJitter, policy.Shadow, policy.ChargeStatus, policy.Hold, [Costs], echomw.Unless,
// echomw.OnError and echomw.OnDeny, and the options of package policy for every middleware. New
// panics if limiter or key is nil.
func New(limiter *tokenbucket.Limiter, key echomw.KeyFunc, opts ...policy.RateLimitOption) echo.MiddlewareFunc {
	return adapter.Handler(httpmw.RateLimit(adapter.Echo{}, limiter, key, opts))
}

// Usage returns a handler that answers with the state of a client's limits, and charges nothing:
//
//	e.GET("/usage", ratelimit.Usage(limiter, byUser))
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Usage] says.
//
// Options are echomw.OnError, echomw.OnDeny and the options of package policy for every middleware.
// Usage panics if limiter or key is nil, and with echomw.Unless.
func Usage(limiter *tokenbucket.Limiter, key echomw.KeyFunc, opts ...echomw.Option) echo.HandlerFunc {
	return httpmw.Usage(adapter.Echo{}, limiter, key, opts)
}

// Costs charges a request by its cost instead of one token: by the estimate, until the handler
// reports the cost to the reservation that tokenbucket.FromContext finds in the request's context.
// See [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Costs]. Settlements that fail go to
// OnError. Once the client has left they are only in the metric lockkeeper.rate_limit.settlements,
// since echo reuses its context. Costs panics if estimate is nil.
func Costs(estimate func(c echo.Context) tokenbucket.Cost) policy.RateLimitOption {
	return httpmw.Costs(estimate)
}
