// Package policy has the parts that the middleware of all frameworks share: the options that need
// no framework's types, and the refusals.
//
// Each option belongs to certain policies; on the middleware of another policy it does not compile.
// An option that takes a function of a framework's own types (Unless, OnError and OnDeny, in that
// framework's packages) compiles on the middleware of another framework, whose New panics.
package policy

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
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

// TransportOption is an option of nethttp/ratelimit.Transport.
type TransportOption = setting.TransportOption

// RPCClientOption is an option of the ratelimit client interceptors of gRPC.
type RPCClientOption = setting.RPCClientOption

// ClientOption is an option of limits in a client, whatever the protocol.
type ClientOption interface {
	TransportOption
	RPCClientOption
}

// RateOption is an option of the ratelimit middleware, whatever the protocol.
type RateOption interface {
	RateLimitOption
	RPCRateLimitOption
}

// BodyOption is an option of the middleware over HTTP that may read bodies: idempotency and
// ratelimit.
type BodyOption interface {
	RateLimitOption
	IdempotencyOption
}

// LimitOption is an option of the middleware that limit the load, ratelimit and concurrency, and of
// limits in a client.
type LimitOption interface {
	RateOption
	ConcurrencyOption
	ClientOption
}

// WaitOption is an option of the middleware in which a request can wait: idempotency, exclusive and
// concurrency.
type WaitOption interface {
	WaitersOption
	ConcurrencyOption
}

// WaitersOption is an option of the middleware that limits the waiters for a key: idempotency and
// exclusive.
type WaitersOption interface {
	GuardOption
	ExclusiveOption
}

// UnprotectedOption is an option of the middleware that protect a handler: idempotency, exclusive
// and fenced.
type UnprotectedOption interface {
	GuardOption
	ExclusiveOption
	FencedOption
}

// GuardOption is an option of the idempotency middleware, whatever the protocol.
type GuardOption interface {
	IdempotencyOption
	RPCIdempotencyOption
}

// OpenOption is an option of [FailOpen] and [RunUnprotected].
type OpenOption func(*setting.Open)

// EvenMisconfigured makes [FailOpen] or [RunUnprotected] apply also while the store is
// misconfigured: the server refuses the password, lacks a permission, is read-only, may evict the
// store's data, or is of the wrong type. Such a state does not end by itself, so without this
// option requests are refused until the configuration is fixed.
func EvenMisconfigured() OpenOption { return func(s *setting.Open) { s.EvenMisconfigured = true } }

func openPolicy(opts []OpenOption) setting.Open {
	s := setting.Open{Passes: true}
	option.Apply(&s, opts)
	return s
}

// FailOpen lets requests through, unlimited, while the store is down. Without it they are refused
// with status 503, or UNAVAILABLE in gRPC, and a client does not send its requests. Answers that
// passed the concurrency middleware without a permit carry "Concurrency-Status: bypassed".
//
// A store that is full, overloaded, or misconfigured (see [EvenMisconfigured]), is not down:
// requests are refused. The middleware logs the beginning and the end of a time in which requests
// pass, with the cause and the number of passed requests, and counts each such request
// (docs/observability.md).
func FailOpen(opts ...OpenOption) LimitOption {
	open := openPolicy(opts)
	return setting.Func(func(s *setting.Settings) { s.Open = open })
}

// Overload means that the permits protect the server, and not its clients from each other. A
// request without a permit is refused with status 503 of type temporary-reduced-capacity, or
// UNAVAILABLE in gRPC, instead of 429, or RESOURCE_EXHAUSTED: load balancers and clients see that
// the request is not at fault. Retry-After is random, so that refused clients do not come back
// together: as long as without Overload, and up to as much again, or up to 3 s more if that is
// longer. It is no failure: OnError is not called, and spans have no error of this module. Such a
// permit belongs in front of idempotency, where replays need one too.
func Overload() ConcurrencyOption {
	return setting.Func(func(s *setting.Settings) { s.Overload = true })
}

// Tier is the importance of a request, for the option Tiers of the concurrency middleware. Any
// value but these counts as Background.
type Tier = semaphore.Tier

// The tiers, with the part of the semaphore's capacity that each may use unless its SetTierShares
// changes it.
const (
	Critical   = semaphore.Critical   // all of it
	Normal     = semaphore.Normal     // 90 %
	Low        = semaphore.Low        // 70 %
	Background = semaphore.Background // 50 %
)

// MaxHold sets the longest time for which one answer of a server can hold a key of a client: 15 min
// if not set. An answer that asks for more, by mistake or not, holds it for d, and the next one may
// again. Zero never holds a key. MaxHold panics if d is negative, less than a millisecond but not
// zero, or more than tokenbucket.MaxHold, 30 days.
func MaxHold(d time.Duration) ClientOption {
	if d != 0 && (d < time.Millisecond || d > tokenbucket.MaxHold) {
		panic(fmt.Sprintf("policy: MaxHold: %v is neither 0 nor between 1ms and %v", d, tokenbucket.MaxHold))
	}
	return setting.Func(func(s *setting.Settings) { s.MaxHold = d })
}

// RunUnprotected runs requests without their guard, their lock or the check of their fence while
// the store is down. Without it such requests are refused with status 503, or UNAVAILABLE in gRPC.
// The answer names the bypass:
//
//   - "Idempotency-Status: bypassed": a request that is sent twice runs twice.
//   - "Lock-Status: bypassed": requests of one key run at the same time.
//   - "Fence-Status: bypassed": requests of holders that have lost their lock run.
//
// A store that is full, overloaded, or misconfigured (see [EvenMisconfigured]), is not down:
// requests are refused. A guard also refuses requests once its store was shut down or closed.
// Passed requests are logged and counted as by [FailOpen].
func RunUnprotected(opts ...OpenOption) UnprotectedOption {
	open := openPolicy(opts)
	return setting.Func(func(s *setting.Settings) { s.Open = open })
}

// AllowUnfenced lets requests without a fence pass, such as those of clients that hold no lock:
// their writes are unprotected. Without it they are refused with status 428, or INVALID_ARGUMENT in
// gRPC. A fence that cannot be read is refused with or without it.
func AllowUnfenced() FencedOption {
	return setting.Func(func(s *setting.Settings) { s.AllowUnfenced = true })
}

// maxWait is longer than any client's timeout, and minWait shorter than any round trip: values
// beyond them are mistakes in the unit.
const (
	minWait = time.Millisecond
	maxWait = time.Hour
)

// Wait makes a request wait for its lock, for a permit, or for the answer to a request with the
// same idempotency key, for up to d before it is refused. Without it, or with zero, it is refused
// at once. A client that leaves ends the wait. Wait panics if d is negative, less than a
// millisecond, such as Wait(2), which is 2 ns, or more than an hour.
//
// Every waiting request costs a connection and a goroutine, so d should be no longer than the
// client's own timeout. A request that waits for an answer keeps its body, since it runs itself if
// the other attempt was released: the body counts in the share of its scope ([MaxBodies]).
func Wait(d time.Duration) WaitOption {
	if d != 0 && (d < minWait || d > maxWait) {
		panic(fmt.Sprintf("policy: Wait: %v is neither 0 nor between %v and %v", d, minWait, maxWait))
	}
	return setting.Func(func(s *setting.Settings) { s.Wait = d })
}

// MaxWaiting lets at most n requests of each key wait at the same time: for its lock, 1,024 if not
// set, or for the answer to the request in flight, 16 if not set. One more is refused at once. The
// queue of a semaphore is limited by semaphore.WithMaxWaiting.
//
// MaxWaiting panics if n is less than 1. New panics if no request can wait, because there is
// neither [Wait] nor [Dedupe].
//
// The waiters of this process are counted exactly. A request that finds n waiters for a lock in all
// processes together is refused too; waiters for an answer are counted in each process alone.
//
// Choose n so that the last in the queue for a lock gets its turn within the time that it may wait:
// more waiters cost connections, and are refused all the same.
func MaxWaiting(n int) WaitersOption {
	if n < 1 {
		panic(fmt.Sprintf("policy: MaxWaiting: %d is less than 1", n))
	}
	return setting.Func(func(s *setting.Settings) { s.MaxWaiting = n })
}

// Required refuses requests without an idempotency key, with status 400, or INVALID_ARGUMENT in
// gRPC. Without it they run unguarded, or guarded by [Dedupe].
func Required() GuardOption {
	return setting.Func(func(s *setting.Settings) { s.Required = true })
}

// The bounds of a window of [Dedupe].
const (
	minDedupe = time.Second
	maxDedupe = time.Hour
)

// Dedupe guards requests without an idempotency key too, against double clicks. Requests of one
// scope with the same method, host, path, query, content type, preconditions, Range and body (in
// gRPC the same method and message) are one operation while the first one runs, and for the window
// after that. A repeat waits for the first one, for the time of [Wait] or 10 s without it, and then
// gets its answer, marked as replayed. After the window, and for another scope, it is a new
// request. A request with a key is guarded by that alone. Where the middleware is Unscoped, equal
// requests of two clients are one operation, too, and both get its answer.
//
// Dedupe is for routes on which two equal requests within so short a time are never intended: equal
// input is no proof of a repeat. The answer to the first request is kept as the answer to one with
// a key, also if it is an error; a stream of events is not kept (docs/idempotency.md). If the
// process of the first request dies, repeats are refused until its lease ends, or the window if
// that is longer.
//
// Every request of the guarded methods needs a scope, and its body is read: [MaxBody] and
// [MaxBodies] apply to all of them. [Fingerprint] replaces the body. Dedupe panics if the window is
// less than 1 s or more than an hour. New panics if there is [Required], since then no request
// lacks a key, or [KeyAlone], with which all requests to a path would be one.
func Dedupe(window time.Duration) GuardOption {
	if window < minDedupe || window > maxDedupe {
		panic(fmt.Sprintf("policy: Dedupe: %v is not between %v and %v", window, minDedupe, maxDedupe))
	}
	return setting.Func(func(s *setting.Settings) { s.Dedupe = window })
}

// Methods sets the guarded request methods: POST and PATCH if not set. Requests with another method
// pass, whether or not they carry a key. Methods are converted to upper case: "post" is POST. It
// panics without any method, and on an invalid one.
func Methods(methods ...string) IdempotencyOption {
	if len(methods) == 0 {
		panic("policy: Methods: no methods")
	}
	upper := make([]string, len(methods))
	for i, m := range methods {
		if m == "" || strings.ContainsFunc(m, notInToken) {
			panic(fmt.Sprintf("policy: Methods: %q is no method", m))
		}
		upper[i] = strings.ToUpper(m)
	}
	return setting.Func(func(s *setting.Settings) { s.Methods = upper })
}

// notInToken reports whether a character cannot be in a token (RFC 9110, section 5.6.2).
func notInToken(r rune) bool {
	return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// MaxBody sets the largest request body, in bytes, that a middleware reads: 1 MiB if not set.
//
// A guard reads every body. A larger one is refused with status 413, since the fingerprint of a
// part could not tell two of them apart. Other middleware reads a body only if one of its functions
// does: the function of a key, a scope, a cost or Unless. The function reads a copy, and the
// handler still gets the whole body. Beyond MaxBody the function gets a *http.MaxBytesError. If a
// key function returns that error, the request is refused with status 413. If it returns another
// error of reading the body, the status is 400, or 503 for the error of [MaxBodies]. Functions of
// exclusive, concurrency and fenced read 1 MiB at most.
//
// It panics if n is negative.
func MaxBody(n int64) BodyOption {
	if n < 0 {
		panic(fmt.Sprintf("policy: MaxBody: %d is negative", n))
	}
	return setting.Func(func(s *setting.Settings) { s.MaxBody = n })
}

// MaxBodies sets how many bytes of request bodies one middleware keeps in memory at a time, of all
// requests together: 64 MiB if not set, or the most that one request may take if that is more. A
// guarded request whose body would exceed it is refused with status 503, and its client may try
// again. Functions that read bodies ([MaxBody]) get an error, and have as much again for their
// copies. Without a bound, a few hundred clients that hold back the end of a large body would take
// all memory.
//
// The bodies of one scope take a quarter of it at most, or the most that one request may take if
// that is more. A further request of the scope is refused with status 429 (too-many-at-once), and
// requests of other scopes run. So a user with long requests, and many that wait for their answers,
// takes a quarter. Set MaxBodies to four times the need of a large scope, such as a tenant.
// Requests without a scope share all of it.
//
// A body counts as its bytes arrive, whatever length the client announces, and up to twice its
// bytes while it is read. It counts until its handler has answered, or until the request is about
// to be refused or to get a kept answer; it counts twice while [Fingerprint] uses it. The first 4
// KiB of a body do not count, so that slow clients keep out no requests with small bodies. The
// server's ReadTimeout ends slow clients.
//
// MaxBodies panics if n is less than 1. New panics if n is less than [MaxBody], or than twice that
// with Fingerprint.
func MaxBodies(n int64) BodyOption {
	if n < 1 {
		panic(fmt.Sprintf("policy: MaxBodies: %d is less than 1", n))
	}
	return setting.Func(func(s *setting.Settings) { s.MaxBodies = n })
}

// Fingerprint replaces the body in the fingerprint of a request, by which a repeat is recognised,
// with the result of f. An application can so add to the body, such as a tenant or a version of its
// API. Method, host, path, query, content type, preconditions and Range remain part of the
// fingerprint.
//
// [JSONFingerprint] compares only some fields of a JSON body. An f that decodes the body into an
// any, or into a float64, makes one request of two, since integers above 2^53 are rounded.
//
// The request and the body are copies for f: its reads and changes do not affect the handler. If f
// returns an error, the request is refused as the client's mistake, with status 400. Fingerprint
// panics if f is nil, and New if there is [KeyAlone] as well.
func Fingerprint(f func(r *http.Request, body []byte) ([]byte, error)) IdempotencyOption {
	return setting.Given("policy: Fingerprint", f, func(s *setting.Settings) { s.Fingerprint = f })
}

// OneService declares that these hosts are one service: a request to one of them is a repeat of the
// same request to another. Without it a repeat to another host is refused with status 422. Other
// spellings of the same host always match: letters in upper case, port 80 or 443, a dot at the end.
// Given several times, it describes several services. It panics if there are fewer than two hosts.
func OneService(hosts ...string) IdempotencyOption {
	if len(hosts) < 2 {
		panic(fmt.Sprintf("policy: OneService: %d hosts", len(hosts)))
	}
	return setting.Func(func(s *setting.Settings) {
		if s.Services == nil {
			s.Services = make(map[string]string)
		}
		for _, host := range hosts {
			s.Services[setting.Host(host)] = setting.Host(hosts[0])
		}
	})
}

// KeyAlone makes requests with the same key the same request, whatever their body, query and header
// fields are: only method, host and path are compared, and in gRPC only the method. It is for keys
// that the sender gives to an event, such as a webhook's, whose redelivery has another timestamp in
// its body. Do not use it where clients choose their keys: a client that uses a key twice by
// mistake gets the answer to another of its requests.
func KeyAlone() GuardOption {
	return setting.Func(func(s *setting.Settings) { s.KeyAlone = true })
}

// KeepStatus keeps and replays answers with these statuses, instead of the table in
// docs/idempotency.md. It panics on a value that is not a final status.
func KeepStatus(statuses ...int) IdempotencyOption { return statusOption("KeepStatus", true, statuses) }

// ReleaseStatus does not keep answers with these statuses, even if the attempt may have had
// effects: the next request with the same key runs. The table in docs/idempotency.md has the
// statuses that are released without it. It panics on a value that is not a final status.
func ReleaseStatus(statuses ...int) IdempotencyOption {
	return statusOption("ReleaseStatus", false, statuses)
}

func statusOption(name string, keep bool, statuses []int) IdempotencyOption {
	for _, status := range statuses {
		checkStatus(name, status)
	}
	return setting.Func(func(s *setting.Settings) {
		for _, status := range statuses {
			s.Keep[status] = keep
		}
	})
}

func checkStatus(name string, status int) {
	if status < 200 || status > 599 {
		panic(fmt.Sprintf("policy: %s: %d is no final status", name, status))
	}
}
