// Package exclusive runs requests of the same key one at a time, as net/http middleware:
//
//	oneAtATime := exclusive.New(carts, nethttp.ByPathValue("id"), policy.Wait(2*time.Second))
//	mux.Handle("PUT /carts/{id}", oneAtATime(updateCart))
//
// It stands behind authentication and authorisation, so that unauthenticated requests cannot block
// others, and behind idempotency, so that a replay takes no lock.
//
// The mechanism behind it is a lock: package [lock].
package exclusive

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/adapter"
)

// New returns middleware that runs the handler while it holds the lock of the request's key, and
// answers without the handler if it does not get it:
//
//   - 409 with Retry-After and a problem body (RFC 9457) of type locked if the lock is held. With
//     policy.Wait, if it was not released within that time, or at once if policy.MaxWaiting
//     requests (1,024 if not set) are waiting already;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 503 with Retry-After if the store is unavailable. With policy.RunUnprotected the handler runs
//     without the lock instead, the answer has "Lock-Status: bypassed", and lock.FromContext finds
//     no lease;
//   - 500 if the application has not provided the key, which is logged once (policy.Logger), or if
//     the key function fails.
//
// The locks are locker's: a caller of locker.Lock with the same key, in this process or another,
// excludes the handler, and is excluded by it.
//
// The handler's request has the lease's context. It ends when the lock is lost, with the cause that
// lock.Lease documents, and with the request's own context, as when the client disconnects; neither
// stops a handler that ignores its context. lock.FromContext finds the lease in it. A resource can
// refuse the late writes of a paused handler by the lease's fence.
//
// The lock is released when the handler returns or panics, and not before, whether or not the
// client is still connected. If it was lost while the handler ran, or cannot be released in time,
// nethttp.OnError is called; the answer is the handler's.
//
// Middleware that answers while its handler runs, such as http.TimeoutHandler, belongs outside:
// inside, the lock is released when it answers, and others run beside its handler. If the
// middleware is given an http.TimeoutHandler, it is logged.
//
// A request whose client disconnects while it waits leaves the queue, also behind the idempotency
// middleware, and the handler does not run. So that a server notices it over HTTP/1.1, a body of
// known length up to 64 KiB is read before the request waits, 16 MiB of such bodies in total; a
// request with another unread body keeps waiting.
//
// A request that passes two of these middleware with the same locker and key holds the lock once. A
// handler that needs the locks of several keys takes them with lock.Locker's LockAll, since two
// middleware with different keys may wait for each other.
//
// Options are policy.Wait, policy.MaxWaiting, policy.RunUnprotected, nethttp.Unless,
// nethttp.OnError and nethttp.OnDeny, and the options of package policy for every middleware. New
// panics if locker or key is nil; the returned function panics if the handler is nil.
func New(locker *lock.Locker, key nethttp.KeyFunc, opts ...policy.ExclusiveOption) func(http.Handler) http.Handler {
	m := httpmw.Exclusive(adapter.NetHTTP{}, locker, adapter.Key(key), opts)
	return adapter.UntilItEnds("exclusive", setting.Of(opts).Logger, m)
}
