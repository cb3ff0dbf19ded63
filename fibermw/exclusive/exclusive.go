// Package exclusive runs requests of the same key one at a time, as fiber v3 middleware:
//
//	app.Put("/carts/:id", exclusive.New(carts, fibermw.ByParam("id"), policy.Wait(2*time.Second)), updateCart)
//
// It stands behind authentication and authorisation, so that unauthenticated requests cannot block
// others, and behind idempotency, so that a replay takes no lock.
//
// The mechanism behind it is a lock: package [lock].
package exclusive

import (
	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that runs the handler while it holds the lock of the request's key, and
// answers without the handler if it does not get the lock:
//
//   - 409 with Retry-After if the lock is held, with policy.Wait for all of that time;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, or if the key function fails;
//   - 503 with Retry-After if the store is unavailable, unless policy.RunUnprotected.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/exclusive.New] says, with fibermw.OnError.
//
// Fasthttp sends an answer when its handlers have returned, so a streamed one (c.SendStreamWriter)
// is sent when the lock has been released. Fiber's timeout middleware stands outside.
//
// Fiber does not report that a client has left, so a request waits for its turn all the same.
//
// Options are policy.Wait, policy.MaxWaiting, policy.RunUnprotected, fibermw.Unless, fibermw.OnError
// and fibermw.OnDeny, and the options of package policy for every middleware. New panics if locker or
// key is nil.
func New(locker *lock.Locker, key fibermw.KeyFunc, opts ...policy.ExclusiveOption) fiber.Handler {
	return adapter.Handler(httpmw.Exclusive(adapter.Fiber{}, locker, adapter.Copied(key), opts))
}
