// Package ratelimit limits the rate of requests of each key, as net/http middleware:
//
//	handler := ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))(mux)
package ratelimit

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/adapter"
)

// New returns middleware that takes one token of the request's key, and answers without the handler
// if there is none:
//
//   - 429 over the limit, with Retry-After and a problem body (RFC 9457) of type quota-exceeded;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 503 with Retry-After if the store is unavailable, unless the option policy.FailOpen lets such
//     requests pass;
//   - 500 if the application has not provided the key, which is logged once (policy.Logger), or if
//     the key function fails.
//
// The response to every request that the limiter decided about has RateLimit and RateLimit-Policy
// (draft-ietf-httpapi-ratelimit-headers).
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, nethttp.Unless,
// nethttp.OnError and nethttp.OnDeny. New panics if limiter or key is nil, and what it returns if
// the handler is.
func New(limiter *tokenbucket.Limiter, key nethttp.KeyFunc, opts ...policy.RateLimitOption) func(http.Handler) http.Handler {
	return adapter.Handler("ratelimit", httpmw.RateLimit(adapter.NetHTTP{}, limiter, adapter.Key(key), opts))
}
