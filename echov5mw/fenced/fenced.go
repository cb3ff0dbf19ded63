// Package fenced refuses requests of holders that have lost their lock, as echo v5 middleware:
//
//	e.PUT("/carts/:id", saveCart, fenced.New(marks, echov5mw.ByParam("id")))
//
// The mechanism behind it is the fence of a lock: see package [fence].
package fenced

import (
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that runs the handler of a request whose fence is not lower than the
// largest seen for the request's key, and returns an error without running it otherwise. The
// application's HTTPErrorHandler answers with it:
//
//   - 412 if a larger fence has been seen;
//   - 428 if there is none, unless policy.AllowUnfenced;
//   - 400 if the fence or the key cannot be read, or the client has not sent the key;
//   - 500 if the application has not provided the key, or if the key function or the checker fails;
//   - 503 with Retry-After if the checker's store is unavailable, unless policy.RunUnprotected.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/fenced.New] says, with echov5mw.OnError.
// The client sends its fence with the Transport of that package.
//
// Options are policy.AllowUnfenced, policy.RunUnprotected, echov5mw.Unless, echov5mw.OnError and
// echov5mw.OnDeny, and the options of package policy for every middleware. New panics if checker or
// key is nil.
func New(checker fence.Checker, key echov5mw.KeyFunc, opts ...policy.FencedOption) echo.MiddlewareFunc {
	return adapter.Handler(httpmw.Fenced(adapter.Echo{}, checker, key, opts))
}
