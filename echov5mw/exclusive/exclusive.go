// Package exclusive has requests of the same key run one at a time, as echo v5 middleware:
//
//	e.PUT("/carts/:id", updateCart, exclusive.New(carts, echov5mw.ByParam("id"), policy.Wait(2*time.Second)))
//
// It stands behind authentication and authorisation, so that strangers hold up nobody, and behind
// idempotency, so that a replay takes no lock.
package exclusive

import (
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that runs the handler while it holds the lock of the request's key, and
// returns an error without running it if it does not get the lock. The application's HTTPErrorHandler
// answers with it; echo's own with a problem body (RFC 9457):
//
//   - 409 with Retry-After and type locked if another has the lock. With policy.Wait, if it has not
//     become free within that time, or at once if as many requests wait already as policy.MaxWaiting
//     says (1,024 if not set);
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 503 with Retry-After if the store is unavailable. With policy.RunUnprotected the handler runs
//     without the lock instead, the answer has "Lock-Status: bypassed", and lock.FromContext finds
//     no lease;
//   - 500 if the application has not provided the key, which is logged once (policy.Logger), or if the key
//     function fails.
//
// Locks are those of locker: whoever calls locker.Lock with the same key, here or in another
// process, excludes the handler, and is excluded by it.
//
// The handler's request has the lease's context. It ends when the lock is lost, with the cause that
// lock.Lease says, and with the request's own context, as when the client disconnects; neither stops
// a handler that does not look. lock.FromContext finds the lease in it, and so the fence, which
// keeps the writes of a handler that was paused for too long from doing harm.
//
// The lock is released when the handler returns or panics, and not before, whether or not the client
// is still there. If it turns out to have been lost meanwhile, or cannot be released in time,
// echov5mw.OnError is told; the answer is the handler's. An error that the handler returns becomes an
// answer after the lock has been released.
//
// A request whose client disconnects while it waits gives up its place, also behind the idempotency
// middleware, and the handler does not run. So that a server notices it over HTTP/1.1, a body of up to
// 64 KiB whose length is known is read before the request waits, 16 MiB of them in all; with another
// unread body the request waits on.
//
// A request that passes two of these middleware with the same locker and key holds the lock once. A
// handler that needs the locks of several keys takes them with lock.Locker's LockAll, since two
// middleware with different keys may wait for each other.
//
// Options are policy.Wait, policy.MaxWaiting, policy.RunUnprotected, echov5mw.Unless,
// echov5mw.OnError and echov5mw.OnDeny. New panics if locker or key is nil.
func New(locker *lock.Locker, key echov5mw.KeyFunc, opts ...policy.ExclusiveOption) echo.MiddlewareFunc {
	return adapter.Handler(httpmw.Exclusive(adapter.Echo{}, locker, key, opts))
}
