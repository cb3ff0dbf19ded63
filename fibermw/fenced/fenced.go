// Package fenced refuses requests of holders that have lost their lock, as fiber v3 middleware:
//
//	app.Put("/carts/:id", fenced.New(marks, fibermw.ByParam("id")), saveCart)
//
// The mechanism behind it is the fence of a lock: see package [fence].
package fenced

import (
	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that runs the handler of a request whose fence is not lower than the
// largest seen for the request's key, and answers without the handler otherwise:
//
//   - 412 if a larger fence has been seen;
//   - 428 if there is none, unless policy.AllowUnfenced;
//   - 400 if the fence or the key cannot be read, or the client has not sent the key;
//   - 500 if the application has not provided the key, or if the key function or the checker fails;
//   - 503 with Retry-After if the checker's store is unavailable, unless policy.RunUnprotected.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/fenced.New] says, with fibermw.OnError.
// The client sends its fence with the Transport of that package.
//
// Options are policy.AllowUnfenced, policy.RunUnprotected, fibermw.Unless, fibermw.OnError and
// fibermw.OnDeny, and the options of package policy for every middleware. New panics if checker or
// key is nil.
func New(checker fence.Checker, key fibermw.KeyFunc, opts ...policy.FencedOption) fiber.Handler {
	return adapter.Handler(httpmw.Fenced(adapter.Fiber{}, checker, adapter.Copied(key), opts))
}
