// Package ratelimit limits the rate of requests of each key, as echo v5 middleware:
//
//	e.Use(ratelimit.New(limiter, echov5mw.ByClientIP(clientip.Direct())))
package ratelimit

import (
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that takes one token of the request's key, and returns an error without
// running the handler if there is none. The application's HTTPErrorHandler answers with it:
//
//   - 429 with Retry-After over the limit;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, or if the key function fails;
//   - 503 with Retry-After if the store is unavailable, unless policy.FailOpen.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.New] says.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, echov5mw.Unless,
// echov5mw.OnError and echov5mw.OnDeny. New panics if limiter or key is nil.
func New(limiter *tokenbucket.Limiter, key echov5mw.KeyFunc, opts ...policy.RateLimitOption) echo.MiddlewareFunc {
	return adapter.Handler(httpmw.RateLimit(adapter.Echo{}, limiter, key, opts))
}
