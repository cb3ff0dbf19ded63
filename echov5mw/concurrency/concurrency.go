// Package concurrency limits how many requests of the same key run concurrently, as echo v5
// middleware:
//
//	e.GET("/reports/:tenant", report, concurrency.New(reports, echov5mw.ByParam("tenant"), policy.Wait(time.Second)))
//
// It is the last one before the handler, behind exclusive: a request that waits for a lock, or is
// replayed, holds no permit.
//
// The mechanism behind it is a semaphore: package [semaphore].
package concurrency

import (
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that runs the handler while it holds a permit, of weight 1, of the
// semaphore of the request's key, and returns an error without running it if it does not get one.
// The application's HTTPErrorHandler answers with it:
//
//   - 429 with Retry-After if no permit is free, with policy.Wait within that time; or 503, with
//     policy.Overload;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, if the key function fails,
//     or if the same semaphore is in the chain twice with the same key;
//   - 503 with Retry-After if the store is unavailable, unless policy.FailOpen.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/concurrency.New] says, with
// echov5mw.OnError.
//
// Options are policy.Wait, policy.Overload, policy.FailOpen, [Tiers], echov5mw.Unless,
// echov5mw.OnError and echov5mw.OnDeny, and the options of package policy for every middleware. New
// panics if sem or key is nil.
func New(sem *semaphore.Semaphore, key echov5mw.KeyFunc, opts ...policy.ConcurrencyOption) echo.MiddlewareFunc {
	return adapter.Handler(httpmw.Concurrency(adapter.Echo{}, sem, key, opts))
}

// Tiers gives each request a tier, which may use a part of the capacity: see
// [github.com/lockkeeper/lockkeeper/nethttp/concurrency.Tiers]. Tiers panics if tier is nil.
func Tiers(tier func(c *echo.Context) policy.Tier) policy.ConcurrencyOption {
	return httpmw.Tiers(tier)
}
