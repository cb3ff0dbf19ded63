// Package policy is what every middleware has in common, whatever its framework: the options that
// need no framework's types, and what a refusal says.
//
// Each option belongs to the middleware that it makes sense for; on another one it does not
// compile.
package policy

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// RateLimitOption is an option of the ratelimit middleware of every HTTP framework.
type RateLimitOption = setting.RateLimitOption

// RPCRateLimitOption is an option of the ratelimit interceptors of gRPC.
type RPCRateLimitOption = setting.RPCRateLimitOption

// IdempotencyOption is an option of the idempotency middleware of every HTTP framework.
type IdempotencyOption = setting.IdempotencyOption

// RPCIdempotencyOption is an option of the idempotency interceptors of gRPC.
type RPCIdempotencyOption = setting.RPCIdempotencyOption

// ExclusiveOption is an option of the exclusive middleware of every framework.
type ExclusiveOption = setting.ExclusiveOption

// ConcurrencyOption is an option of the concurrency middleware of every framework.
type ConcurrencyOption = setting.ConcurrencyOption

// FencedOption is an option of the fenced middleware of every framework.
type FencedOption = setting.FencedOption

// LimitOption is an option of the middleware that limit how much runs: ratelimit and concurrency.
type LimitOption interface {
	RateLimitOption
	RPCRateLimitOption
	ConcurrencyOption
}

// WaitOption is an option of the middleware that can have a request wait: exclusive and
// concurrency.
type WaitOption interface {
	ExclusiveOption
	ConcurrencyOption
}

// UnprotectedOption is an option of the middleware that protect a handler: idempotency, exclusive and
// fenced.
type UnprotectedOption interface {
	IdempotencyOption
	RPCIdempotencyOption
	ExclusiveOption
	FencedOption
}

// GuardOption is an option of the idempotency middleware, whatever the protocol.
type GuardOption interface {
	IdempotencyOption
	RPCIdempotencyOption
}

type rateLimitFunc func(*setting.RateLimit)

func (f rateLimitFunc) ApplyRateLimit(s *setting.RateLimit) { f(s) }

type idempotencyFunc func(*setting.Idempotency)

func (f idempotencyFunc) ApplyIdempotency(s *setting.Idempotency) { f(s) }

type concurrencyFunc func(*setting.Concurrency)

func (f concurrencyFunc) ApplyConcurrency(s *setting.Concurrency) { f(s) }

type fencedFunc func(*setting.Fenced)

func (f fencedFunc) ApplyFenced(s *setting.Fenced) { f(s) }

type failOpen struct{}

func (failOpen) ApplyRateLimit(s *setting.RateLimit)       { s.FailOpen = true }
func (failOpen) ApplyRPCRateLimit(s *setting.RPCRateLimit) { s.FailOpen = true }
func (failOpen) ApplyConcurrency(s *setting.Concurrency)   { s.FailOpen = true }

type wait time.Duration

func (w wait) ApplyExclusive(s *setting.Exclusive)     { s.Wait = time.Duration(w) }
func (w wait) ApplyConcurrency(s *setting.Concurrency) { s.Wait = time.Duration(w) }

type unprotected struct{}

func (unprotected) ApplyIdempotency(s *setting.Idempotency)       { s.RunUnprotected = true }
func (unprotected) ApplyRPCIdempotency(s *setting.RPCIdempotency) { s.RunUnprotected = true }
func (unprotected) ApplyExclusive(s *setting.Exclusive)           { s.RunUnprotected = true }
func (unprotected) ApplyFenced(s *setting.Fenced)                 { s.RunUnprotected = true }

type required struct{}

func (required) ApplyIdempotency(s *setting.Idempotency)       { s.Required = true }
func (required) ApplyRPCIdempotency(s *setting.RPCIdempotency) { s.Required = true }

// FailOpen lets requests through, unlimited, while the store is unavailable. Without it they are
// refused with status 503, or UNAVAILABLE in gRPC. Answers that passed the concurrency middleware
// without a permit carry "Concurrency-Status: bypassed".
func FailOpen() LimitOption { return failOpen{} }

// LegacyHeaders adds X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset (seconds from
// now) for the limit that is nearest to exhaustion, beside the standard fields.
func LegacyHeaders() RateLimitOption {
	return rateLimitFunc(func(s *setting.RateLimit) { s.LegacyHeaders = true })
}

// RunUnprotected runs requests without their guard, their lock, or a look at their fence, while the
// store is unavailable. A request that is sent twice then runs twice, and the answer carries
// "Idempotency-Status: bypassed"; requests of one key then run at the same time, and the answer carries
// "Lock-Status: bypassed"; requests of holders that have lost their lock then run, and the answer
// carries "Fence-Status: bypassed". Without it such requests are refused with status 503, or
// UNAVAILABLE in gRPC.
func RunUnprotected() UnprotectedOption { return unprotected{} }

// AllowUnfenced lets requests without a fence pass, as those of clients that hold no lock, and what
// they write is protected from nobody and by nothing. Without it they are refused with status 428, or
// INVALID_ARGUMENT in gRPC. A fence that cannot be read is refused with or without it.
func AllowUnfenced() FencedOption {
	return fencedFunc(func(s *setting.Fenced) { s.AllowUnfenced = true })
}

// maxWait is longer than any client's patience: more is a mistake in the unit.
const maxWait = time.Hour

// Wait has a request wait for its turn, or for room, for up to d before it is refused. Without it, or
// with zero, it is refused at once. It panics if d is negative or more than an hour.
//
// Every request that waits costs a connection and a goroutine, so d should be no longer than the
// client's own time-out.
func Wait(d time.Duration) WaitOption {
	if d < 0 || d > maxWait {
		panic(fmt.Sprintf("policy: Wait: %v is not between 0 and %v", d, maxWait))
	}
	return wait(d)
}

// MaxWaiting has at most n requests wait for room at the same time, for each key, in all processes
// together: 1,024 if not set. One more is refused at once. Without [Wait] nobody waits, and it says
// nothing. It panics if n is less than 1.
//
// The last in the queue should get its turn within the time that it may wait: more than that many
// cost connections, and are refused all the same.
func MaxWaiting(n int) ConcurrencyOption {
	if n < 1 {
		panic(fmt.Sprintf("policy: MaxWaiting: %d is less than 1", n))
	}
	return concurrencyFunc(func(s *setting.Concurrency) { s.MaxWaiting = n })
}

// PerInstance counts the requests of this process alone, each process up to the whole capacity: a
// bulkhead, for what a process has of its own, such as memory or a pool of connections. The store is
// not asked, so its outages do not matter.
func PerInstance() ConcurrencyOption {
	return concurrencyFunc(func(s *setting.Concurrency) { s.PerInstance = true })
}

// Required refuses requests without an idempotency key, with status 400, or INVALID_ARGUMENT in
// gRPC. Without it they run unguarded.
func Required() GuardOption { return required{} }

// Methods sets which request methods are guarded: POST and PATCH if not set. Requests with another
// method pass, whether or not they carry a key. It panics without any method.
func Methods(methods ...string) IdempotencyOption {
	if len(methods) == 0 {
		panic("policy: Methods: no methods")
	}
	methods = append([]string(nil), methods...)
	return idempotencyFunc(func(s *setting.Idempotency) { s.Methods = methods })
}

// MaxBody sets the largest request body, in bytes, of a guarded request: 1 MiB if not set. A larger
// one is refused with status 413, since no fingerprint of a part could tell two of them apart. It
// panics if n is negative.
func MaxBody(n int64) IdempotencyOption {
	if n < 0 {
		panic(fmt.Sprintf("policy: MaxBody: %d is negative", n))
	}
	return idempotencyFunc(func(s *setting.Idempotency) { s.MaxBody = n })
}

// KeepStatus has answers with these statuses kept and replayed, over the defaults: 2xx, 3xx and
// those 4xx that would be the same again. Statuses 5xx, and panics, are kept when the attempt is
// dirty (see guard.Attempt), which is how attempts begin, unless the guard allows re-runs. It panics
// on what is no status.
func KeepStatus(statuses ...int) IdempotencyOption { return statusOption("KeepStatus", true, statuses) }

// ReleaseStatus has answers with these statuses not kept: the next request with the same key runs.
// By default these are 401, 403, 407, 408, 409, 421, 425 and 429, which say that nothing was done,
// and 5xx of attempts that are clean or whose guard allows re-runs. It panics on what is no status.
func ReleaseStatus(statuses ...int) IdempotencyOption {
	return statusOption("ReleaseStatus", false, statuses)
}

func statusOption(name string, keep bool, statuses []int) IdempotencyOption {
	for _, status := range statuses {
		if status < 200 || status > 599 {
			panic(fmt.Sprintf("policy: %s: %d is no final status", name, status))
		}
	}
	return idempotencyFunc(func(s *setting.Idempotency) {
		for _, status := range statuses {
			s.Keep[status] = keep
		}
	})
}
