// Package ratelimit limits the rate of requests of each key, as net/http middleware:
//
//	handler := ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))(mux)
//
// [Transport] is the client's side: it limits the requests of an http.Client, and obeys the limits
// of servers.
//
// The mechanism behind it is a token bucket: package [tokenbucket].
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
//   - 429 over the limit, with Retry-After and a problem body (RFC 9457) of type quota-exceeded, or
//     of type abnormal-usage-detected while the key is held (policy.Hold, tokenbucket.Limiter's
//     Hold);
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 503 with Retry-After if the store is unavailable, unless the option policy.FailOpen lets such
//     requests pass;
//   - 500 if the application has not provided the key, which is logged once (policy.Logger), if the
//     key function fails, or if the same limiter is in the chain twice with the same key.
//
// The response to every request that the limiter decided about has RateLimit and RateLimit-Policy
// (draft-ietf-httpapi-ratelimit-headers), except with policy.HideLimits.
//
// If the limits of a request's key are not enforced (tokenbucket.Limiter's SetEnforcement), the
// request passes, and no header field tells of it. A request without a key, or with one of more
// than 1,024 bytes, passes unless those of all keys are enforced. Requests that would have been
// denied are counted as with policy.Shadow.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.LegacyHeaders, policy.HideLimits,
// policy.RetryJitter, policy.Shadow, policy.ChargeStatus, policy.Hold, [Costs], nethttp.Unless,
// nethttp.OnError and nethttp.OnDeny, and the options of package policy for every middleware. New
// panics if limiter or key is nil; the returned function panics if the handler is nil.
func New(limiter *tokenbucket.Limiter, key nethttp.KeyFunc, opts ...policy.RateLimitOption) func(http.Handler) http.Handler {
	return adapter.Handler("ratelimit", httpmw.RateLimit(adapter.NetHTTP{}, limiter, adapter.Key(key), opts))
}

// Usage returns a handler that answers with the state of a client's limits, and charges nothing: it
// peeks at the buckets of the request's key. The key must be the middleware's, behind the same
// authentication.
//
//	mux.Handle("GET /usage", ratelimit.Usage(limiter, byUser))
//
// It answers 200 with JSON, not to be stored by caches. The JSON has each limit of the key's plan,
// in the plan's order: none if it is unlimited or not enforced. Times are whole seconds, rounded
// up:
//
//	{"limits":[{"name":"api","capacity":100,"window":60,"remaining":42,"reset":35}]}
//
// capacity is the number of tokens in a full bucket, window is the time that refills an empty one,
// remaining is the number of tokens left, and reset is the time until the bucket is full. While the
// key is held, nothing remains, and reset is not before the hold ends.
//
// It answers for a key that is not enforced, and without a key while not all keys are, even if the
// store is unavailable. Otherwise it answers as the middleware does: 400 without a key, 503 if the
// store is unavailable, 500 if the application has not provided the key, the key function fails or
// the plan cannot be chosen.
//
// Options are nethttp.OnError, nethttp.OnDeny and the options of package policy for every
// middleware. Usage panics if limiter or key is nil, and with nethttp.Unless.
func Usage(limiter *tokenbucket.Limiter, key nethttp.KeyFunc, opts ...nethttp.Option) http.Handler {
	return adapter.Answer(httpmw.Usage(adapter.NetHTTP{}, limiter, adapter.Key(key), opts))
}

// Costs charges a request by its cost instead of one token. The estimate is taken before the
// handler runs, all or nothing. It is replaced by the cost that the handler reports as soon as that
// is known, even late in a stream:
//
//	if r, ok := tokenbucket.FromContext(r.Context()); ok { // not while the store is down, with policy.FailOpen
//		err := r.Use("tokens", usage.Total)
//	}
//
// The reported cost is charged when the handler has returned or panicked, or its client has left
// (tokenbucket.Reservation's Settle). The estimate stays for units that were not reported, and if
// the process dies. If the cost differs from the estimate, the answer waits until it is settled. A
// settlement that fails is reported to OnError, and not repeated; so is one that overdraws a bucket
// by more than its limit allows (tokenbucket.Limit's Overdraft).
//
// An estimate above the burst of a limit is reduced to it. An estimate of zero passes in any case,
// even while the key is held, or a bucket is overdrawn. A negative estimate, and a unit that no
// limit counts, are mistakes of the application: 500, logged once, and nothing is charged. Of
// several limits with this option in a chain, the handler finds the innermost one's reservation.
// Costs panics if estimate is nil.
func Costs(estimate func(r *http.Request) tokenbucket.Cost) policy.RateLimitOption {
	return httpmw.Costs(estimate)
}
