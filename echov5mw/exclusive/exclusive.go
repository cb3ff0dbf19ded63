// Package exclusive runs requests of the same key one at a time, as echo v5 middleware:
//
//	e.PUT("/carts/:id", updateCart, exclusive.New(carts, echov5mw.ByParam("id"), policy.Wait(2*time.Second)))
//
// It stands behind authentication and authorisation, so that unauthenticated requests cannot block
// others, and behind idempotency, so that a replay takes no lock.
//
// The mechanism behind it is a lock: package [lock].
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
// returns an error without running it if it does not get the lock. The application's
// HTTPErrorHandler answers with it:
//
//   - 409 with Retry-After if the lock is held, with policy.Wait for all of that time;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, or if the key function fails;
//   - 503 with Retry-After if the store is unavailable, unless policy.RunUnprotected.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/exclusive.New] says, with
// echov5mw.OnError. An error that the handler returns becomes an answer after the lock has been
// released.
//
// Options are policy.Wait, policy.MaxWaiting, policy.RunUnprotected, echov5mw.Unless,
// echov5mw.OnError and echov5mw.OnDeny, and the options of package policy for every middleware. New
// panics if locker or key is nil.
func New(locker *lock.Locker, key echov5mw.KeyFunc, opts ...policy.ExclusiveOption) echo.MiddlewareFunc {
	return adapter.Handler(httpmw.Exclusive(adapter.Echo{}, locker, key, opts))
}
