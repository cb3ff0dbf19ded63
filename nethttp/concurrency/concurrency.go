// Package concurrency has at most so many requests of the same key run at a time, as net/http middleware:
//
//	aFewAtATime := concurrency.New(reports, nethttp.ByPathValue("tenant"), policy.Wait(time.Second))
//	mux.Handle("GET /reports/{tenant}", aFewAtATime(report))
//
// It is the last one before the handler, behind exclusive: a request that waits for a lock, or is
// replayed, has no permit meanwhile.
package concurrency

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/adapter"
)

// New returns middleware that runs the handler while it holds a permit, of weight 1, of the
// semaphore of the request's key, and answers without the handler if it does not get one:
//
//   - 429 with Retry-After and a problem body (RFC 9457) of type too-many-at-once if there is no
//     room, or others wait for it. With policy.Wait, if the request's turn has not come within that
//     time, or at once if as many wait already as policy.MaxWaiting says (1,024 if not set);
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 503 with Retry-After if the store is unavailable. With policy.FailOpen the handler runs without
//     a permit instead, the answer has "Concurrency-Status: bypassed", and semaphore.FromContext
//     finds none;
//   - 500 if the application has not provided the key, which is logged once (policy.Logger), or if the key
//     function fails.
//
// Permits are those of sem: whoever calls sem.Acquire with the same key, here or in another process,
// leaves less room for the handler. A semaphore on a memory store counts this process alone: a
// bulkhead. Waiters are served in the order in which they came. How many may wait is the middleware's to say, whatever semaphore.WithMaxWaiting says of sem.
//
// Retry-After is reckoned from how long handlers have lately taken, how many wait, and the capacity:
// 1 s to 1 h.
//
// The handler's request has the permit's context. It ends when the permit is lost, with the cause
// that semaphore.Permit says, and with the request's own context, as when the client disconnects;
// neither stops a handler that does not look. semaphore.FromContext finds the permit in it.
//
// The permit is given back when the handler returns or panics, and not before, whether or not the
// client is still there: a handler that should make room when its client leaves watches its context.
// The answer does not wait for that, so whoever has it may find the place still taken, for about as
// long as a round trip to the store. If the permit was lost while the handler ran, nethttp.OnError is
// told; the answer is the handler's.
//
// A request whose client disconnects while it waits gives up its place, also behind the idempotency
// middleware, and the handler does not run. So that a server notices it over HTTP/1.1, a body of up to
// 64 KiB whose length is known is read before the request waits, 16 MiB of them in all; with another
// unread body the request waits on.
//
// A request that passes two of these middleware with the same semaphore and key takes two permits.
//
// Options are policy.Wait, policy.MaxWaiting, policy.FailOpen, nethttp.Unless,
// nethttp.OnError and nethttp.OnDeny. New panics if sem or key is nil, and what it returns if the handler is.
func New(sem *semaphore.Semaphore, key nethttp.KeyFunc, opts ...policy.ConcurrencyOption) func(http.Handler) http.Handler {
	return adapter.Handler("concurrency", httpmw.Concurrency(adapter.NetHTTP{}, sem, adapter.Key(key), opts))
}
