package policy

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// LegacyHeaders adds X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset (seconds from
// now) for the limit that is nearest to exhaustion, beside the standard fields.
func LegacyHeaders() RateLimitOption {
	return setting.Func(func(s *setting.Settings) { s.LegacyHeaders = true })
}

// HideLimits leaves RateLimit, RateLimit-Policy and the fields of [LegacyHeaders] out of all
// answers, for limits that clients should not know, such as one against guessing. Refusals keep
// Retry-After, and the name of the limit in their problem.
func HideLimits() RateLimitOption {
	return setting.Func(func(s *setting.Settings) { s.HideLimits = true })
}

// maxRetryJitter bounds the delay of [RetryJitter].
const maxRetryJitter = time.Hour

// RetryJitter adds a random number of seconds, from 0 to most, to the time after which a refused
// request may be sent again: in Retry-After, or in RetryInfo and grpc-retry-pushback-ms. So clients
// that are refused together do not come back together. The time is never earlier than without the
// option, and is in whole seconds, also in gRPC. The t of RateLimit remains the time until there is
// a token.
//
// Clients of this module that share a key hold it for the longest time that any of them received
// (Transport and the client interceptors of package ratelimit): they come back together all the
// same.
//
// It panics if most is less than 1 s or more than an hour.
func RetryJitter(most time.Duration) RateOption {
	if most < time.Second || most > maxRetryJitter {
		panic(fmt.Sprintf("policy: RetryJitter: %v is not between 1s and %v", most, maxRetryJitter))
	}
	return setting.Func(func(s *setting.Settings) { s.RetryJitter = most })
}

// Shadow tries out a limit: it decides about requests, and charges them, as if it were enforced,
// and lets all of them pass. Answers have no header field of it. A request that would have been
// denied is counted with its reason (lockkeeper.policy.shadow_denials, docs/observability.md):
//
//   - it is over the limit;
//   - it has no key, or a malformed one, or the application did not provide its key; or
//   - the store is down, and there is no [FailOpen].
//
// Errors are reported to OnError as otherwise, but to no other place of the framework. Options that
// change refusals have no effect.
//
// A limit that is enforced under the same name on the same store shares its buckets, so give the
// trial its own name. A request still waits for the store's decision.
//
// Shadow is fixed when the middleware is built. tokenbucket.Limiter's SetEnforcement puts a limiter
// in shadow while it is in use, for all keys or some of them, and does not charge what it would
// deny.
func Shadow() RateOption {
	return setting.Func(func(s *setting.Settings) { s.Shadow = true })
}

// ChargeStatus charges only the requests whose answer has one of these statuses: with 401 and 403,
// failed attempts to log in. The cost of a request is taken before its handler runs, and given back
// if the answer has another status: a request counts while it runs, so that of many concurrent
// attempts no more run than the limit has room for. A request that is refused because of others in
// flight gets their recent duration as the time to come back, from 1 to 30 s, and not the time
// until tokens come back. Tokens that the handler has reported as used (tokenbucket.Reservation's
// Use) are not given back.
//
// Two kinds of request are charged without a known answer: one whose handler panics or takes over
// the connection, and one whose client left, or whose time was over, before its handler returned.
// If the store is unavailable when tokens are to be given back, they stay charged, which is
// reported to OnError.
//
// The status is the one that passes this middleware: middleware that renders errors, or changes
// statuses, belongs behind it. If middleware outside sets the status later, it is not known here:
// such a request is charged, and the first one is logged. Examples are a handler in gin that calls
// c.Error and writes nothing, and a handler in echo that returns an error without a status while
// echo's own HTTPErrorHandler is in place. The application's own error handler is called for an
// error behind the middleware, which then returns none. An answer waits until the tokens are given
// back.
//
// It panics without any status, and on a value that is no final status.
func ChargeStatus(statuses ...int) RateLimitOption {
	if len(statuses) == 0 {
		panic("policy: ChargeStatus: no statuses")
	}
	charged := make(map[int]bool, len(statuses))
	for _, status := range statuses {
		checkStatus("ChargeStatus", status)
		charged[status] = true
	}
	return setting.Func(func(s *setting.Settings) { s.Charged = charged })
}

// Hold holds a key that exceeds its limits, for longer each time ([tokenbucket.Escalate]). Until
// the hold ends, all requests of the key are refused, in all processes, even if there are tokens
// again. They are refused with status 429 of type abnormal-usage-detected, and in gRPC with
// RESOURCE_EXHAUSTED. Retry-After is the time until the hold has ended and there is a token.
// tokenbucket.Limiter's Reset ends the hold.
//
// With [ChargeStatus], a request that is refused because of others in flight is over the limit only
// if all of these are charged; then the key is held. Until that is known such a request is refused
// as without the option. A request that runs for longer than its token takes to come back, or for
// 30 s, counts as charged.
//
// Give a key that clients share, such as the address of an office, room before this option: a
// single request over the limit holds all of them. With Costs, so does a single estimate that finds
// no room, however much is left. If the store cannot hold the key, the request is refused as
// without the option, and the error is reported to OnError. Hold panics if e is not from Escalate.
func Hold(e tokenbucket.Escalation) RateOption {
	if e == (tokenbucket.Escalation{}) {
		panic("policy: Hold: no escalation; use tokenbucket.Escalate")
	}
	return setting.Func(func(s *setting.Settings) { s.Hold = &e })
}
