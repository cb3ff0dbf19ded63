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

// maxRetryJitter bounds what [RetryJitter] adds.
const maxRetryJitter = time.Hour

// RetryJitter adds a random number of seconds, from 0 to most, to the time after which a refused
// request may be sent again: in Retry-After, or in RetryInfo and grpc-retry-pushback-ms. So clients
// that are refused together do not come back together. It is never earlier than without the option,
// and is in whole seconds, also in gRPC. The t of RateLimit remains the time at which there is a
// token.
//
// Clients of this module that share a key hold it for the longest time that any of them was told
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
// denied is counted with the reason (lockkeeper.policy.shadow_denials, docs/observability.md): over
// the limit, without a key, with a key that is malformed or that the application did not provide,
// or during an outage, unless [FailOpen] lets it pass. Errors are reported to OnError as otherwise,
// but to no other place of the framework. Options that change refusals say nothing.
//
// A limit that is enforced under the same name on the same store shares its buckets, so give the
// trial its own name. A request still waits for the store's decision.
func Shadow() RateOption {
	return setting.Func(func(s *setting.Settings) { s.Shadow = true })
}

// ChargeStatus charges the requests that are answered with one of these statuses, and no others:
// with 401 and 403, attempts to log in that fail. What a request may cost is taken before its
// handler runs, and given back when the answer has another status: a request counts while it runs,
// so that of many attempts at once no more run than the limit has room for. One that is refused
// because of others that still run is told to come back when these may have ended, after their
// recent duration, of 1 to 30 s, and not when tokens have come back. Tokens that the handler
// has reported as used (tokenbucket.Reservation's Use) are not given back.
//
// Charged too are a request whose handler panics or takes over the connection, and one whose client
// left, or whose time was over, before its handler returned: what it would have been answered is
// not known then. What cannot be given back, since the store is unavailable, stays charged, which is
// reported to OnError.
//
// The status is the one that passes this middleware: what renders errors, or changes statuses,
// belongs behind it. A status that middleware outside is left to set is not known: such a request is
// charged, and the first one is logged. So it is with a handler in gin that calls c.Error and writes
// nothing, and with one in echo that returns an error without a status while echo's own
// HTTPErrorHandler is in place. An error handler of the application's is called for an error behind the
// middleware, which then returns none. An answer waits until the tokens are given back.
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

// Hold holds a key that exceeds its limits, for longer each time ([tokenbucket.Escalate]): until
// that time is over, all its requests are refused, in all processes, also if there are tokens
// again. They are refused with status 429 of type abnormal-usage-detected, and in gRPC with
// RESOURCE_EXHAUSTED; Retry-After is when the hold has ended, and there is a token.
// tokenbucket.Limiter's Reset ends the hold.
//
// With [ChargeStatus], a request that is refused because of others that still run is over the limit
// only if all of these are charged; then the key is held. It is refused as without the option
// meanwhile. A request that runs for longer than its token takes to come back, or for 30 s, counts
// as charged.
//
// Give a key that clients share, such as the address of an office, room before this option: a
// single request over the limit holds all of them. With Costs, so does a single estimate that finds
// no room, whatever is left. If the store cannot hold the key, the request is refused as without
// the option, and the error is reported to OnError. It panics if e is not from Escalate.
func Hold(e tokenbucket.Escalation) RateOption {
	if e == (tokenbucket.Escalation{}) {
		panic("policy: Hold: no escalation; use tokenbucket.Escalate")
	}
	return setting.Func(func(s *setting.Settings) { s.Hold = &e })
}
