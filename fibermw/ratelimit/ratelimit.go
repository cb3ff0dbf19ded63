// Package ratelimit limits the rate of requests of each key, as fiber v3 middleware:
//
//	app.Use(ratelimit.New(limiter, fibermw.ByClientIP(clientip.Direct())))
//
// The mechanism behind it is a token bucket: package [tokenbucket].
package ratelimit

import (
	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/internal/adapter"
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
// fiber's context with c.Locals under a string.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, policy.HideLimits,
// policy.RetryJitter, policy.Shadow, policy.ChargeStatus, policy.Hold, [Costs], fibermw.Unless,
// fibermw.OnError and fibermw.OnDeny, and the options of package policy for every middleware. New
// panics if limiter or key is nil.
func New(limiter *tokenbucket.Limiter, key fibermw.KeyFunc, opts ...policy.RateLimitOption) fiber.Handler {
	return adapter.Handler(httpmw.RateLimit(adapter.Fiber{}, limiter, adapter.Copied(key), opts))
}

// Usage returns a handler that answers with the state of a client's limits, and charges nothing:
//
//	app.Get("/usage", ratelimit.Usage(limiter, byUser))
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Usage] says.
//
// Options are fibermw.OnError, fibermw.OnDeny and the options of package policy for every middleware.
// Usage panics if limiter or key is nil, and with fibermw.Unless.
func Usage(limiter *tokenbucket.Limiter, key fibermw.KeyFunc, opts ...fibermw.Option) fiber.Handler {
	return adapter.Answer(httpmw.Usage(adapter.Fiber{}, limiter, adapter.Copied(key), opts))
}

// Costs charges a request by its cost instead of one token: by the estimate, until the handler
// reports the cost to the reservation that tokenbucket.FromContext finds in the request's context.
// See [github.com/lockkeeper/lockkeeper/nethttp/ratelimit.Costs]. Settlements that fail go to
// OnError. Once fiber's timeout middleware has answered they are only in the metric
// lockkeeper.rate_limit.settlements. Costs panics if estimate is nil.
//
// An answer that is streamed (c.SendStreamWriter) begins when the request has been settled.
func Costs(estimate func(c fiber.Ctx) tokenbucket.Cost) policy.RateLimitOption {
	return httpmw.Costs(estimate)
}
