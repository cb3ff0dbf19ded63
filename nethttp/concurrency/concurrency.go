// Package concurrency limits how many requests of the same key run concurrently, as net/http
// middleware:
//
//	aFewAtATime := concurrency.New(reports, nethttp.ByPathValue("tenant"), policy.Wait(time.Second))
//	mux.Handle("GET /reports/{tenant}", aFewAtATime(report))
//
// It is the last one before the handler, behind exclusive: a request that waits for a lock, or is
// replayed, holds no permit.
//
// The mechanism behind it is a semaphore: package [semaphore].
package concurrency

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/adapter"
)

// New returns middleware that runs the handler while it holds a permit, of weight 1, of the
// semaphore of the request's key, and answers without the handler if it does not get one:
//
//   - 429 with Retry-After and a problem body (RFC 9457) of type too-many-at-once if no permit is
//     free, or others wait for one. With policy.Wait, if the request got none within that time, or
//     at once if the queue is full (semaphore.WithMaxWaiting). With policy.Overload it is 503 of
//     type temporary-reduced-capacity;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 503 with Retry-After if the store is unavailable. With policy.FailOpen the handler runs
//     without a permit instead, the answer has "Concurrency-Status: bypassed", and
//     semaphore.FromContext finds none;
//   - 500 if the application has not provided the key, which is logged once (policy.Logger), if the
//     key function fails, or if the same semaphore is in the chain twice with the same key.
//
// The permits are sem's: a caller of sem.Acquire with the same key, in this process or another,
// leaves fewer permits for the handler. A semaphore on a memory store counts this process alone: a
// bulkhead. Waiters are served in the order in which they came.
//
// Retry-After is computed from the recent duration of handlers, the number of waiters and the
// capacity: 1 s to 1 h.
//
// The handler's request has the permit's context. It ends when the permit is lost, with the cause
// that semaphore.Permit documents, and with the request's own context, as when the client
// disconnects; neither stops a handler that ignores its context. semaphore.FromContext finds the
// permit in it.
//
// The permit is released when the handler returns or panics, and not before, whether or not the
// client is still connected. A handler that should release it when its client disconnects watches
// its context. The answer does not wait for the release, so a client that has it may find the
// permit in use for about one round trip to the store. If the permit was lost while the handler
// ran, nethttp.OnError is called; the answer is the handler's.
//
// Middleware that answers while its handler runs, such as http.TimeoutHandler, belongs outside:
// inside, the permit is released when it answers, and others run beside its handler. If the
// middleware is given an http.TimeoutHandler, it is logged.
//
// A request whose client disconnects while it waits leaves the queue, also behind the idempotency
// middleware, and the handler does not run. So that a server notices it over HTTP/1.1, a body of
// known length up to 64 KiB is read before the request waits, 16 MiB of such bodies in total; a
// request with another unread body keeps waiting.
//
// A request that passes two of these middleware with the same semaphore and key takes two permits.
//
// If the capacity adapts itself (semaphore.WithAdaptiveCapacity), the time of the handler is its
// sample. Answers of 500 and above, panics, requests whose client has left and answers that are
// made outside count only if they took longer than the target. Connections that the handler takes
// over, other protocols, and streams of events (text/event-stream) do not count. The handler of
// another stream calls Void of its permit. A wait for the permit does not count.
//
// Options are policy.Wait, policy.Overload, policy.FailOpen, [Tiers], nethttp.Unless,
// nethttp.OnError and nethttp.OnDeny, and the options of package policy for every middleware. New
// panics if sem or key is nil; the returned function panics if the handler is nil.
func New(sem *semaphore.Semaphore, key nethttp.KeyFunc, opts ...policy.ConcurrencyOption) func(http.Handler) http.Handler {
	m := httpmw.Concurrency(adapter.NetHTTP{}, sem, adapter.Key(key), opts)
	return adapter.UntilItEnds("concurrency", setting.Of(opts).Logger, m)
}

// Tiers gives each request a tier, which may use a part of the capacity, and is served after the
// tiers that may use more (semaphore.Semaphore's Tier): policy.Critical all of it, policy.Normal
// 90 %, policy.Low 70 %, policy.Background 50 %; SetTierShares of sem changes the parts. So what
// matters less is refused first. A refused request is answered as without tiers. An unknown tier
// counts as policy.Background. If sem has a reserve, the tier's replaces it.
//
// The server decides about the tier, by what it knows: the route, the account of an authenticated
// client, a plan. A header field with which a client asks for a tier is a wish, which an attacker
// states as well. Read it only behind authentication, and give the lower of the wish and of what
// the account may have:
//
//	func(r *http.Request) policy.Tier {
//		return max(account(r).Tier, wish(r.Header.Get("X-Tier"))) // a lower tier is a larger value
//	}
//
// tier is called once for each request, after its key, and must not write the answer. Tiers panics
// if tier is nil.
func Tiers(tier func(r *http.Request) policy.Tier) policy.ConcurrencyOption {
	return httpmw.Tiers(tier)
}
