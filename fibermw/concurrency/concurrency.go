// Package concurrency limits how many requests of the same key run concurrently, as fiber v3 middleware:
//
//	app.Get("/reports/:tenant", concurrency.New(reports, fibermw.ByParam("tenant"), policy.Wait(time.Second)), report)
//
// It is the last one before the handler, behind exclusive: a request that waits for a lock, or is
// replayed, holds no permit.
//
// The mechanism behind it is a semaphore: package [semaphore].
package concurrency

import (
	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that runs the handler while it holds a permit, of weight 1, of the
// semaphore of the request's key, and answers without the handler if it does not get one:
//
//   - 429 with Retry-After if no permit is free, with policy.Wait within that time; or 503, with
//     policy.Overload;
//   - 400 if the client has not sent the key, or one of more than 1,024 bytes;
//   - 500 if the application has not provided the key, if the key function fails,
//     or if the same semaphore is in the chain twice with the same key;
//   - 503 with Retry-After if the store is unavailable, unless policy.FailOpen.
//
// All else is as [github.com/lockkeeper/lockkeeper/nethttp/concurrency.New] says, with
// fibermw.OnError.
//
// Fasthttp sends an answer when its handlers have returned, so a streamed one (c.SendStreamWriter)
// is sent when the permit has been released. Fiber's timeout middleware stands outside.
//
// Fiber does not report that a client has left, so a request waits for its turn all the same.
//
// Options are policy.Wait, policy.Overload, policy.FailOpen, [Tiers], fibermw.Unless, fibermw.OnError
// and fibermw.OnDeny, and the options of package policy for every middleware. New panics if sem or
// key is nil.
func New(sem *semaphore.Semaphore, key fibermw.KeyFunc, opts ...policy.ConcurrencyOption) fiber.Handler {
	return adapter.Handler(httpmw.Concurrency(adapter.Fiber{}, sem, adapter.Copied(key), opts))
}

// Tiers gives each request a tier, which may use a part of the capacity: see
// [github.com/lockkeeper/lockkeeper/nethttp/concurrency.Tiers]. Tiers panics if tier is nil.
func Tiers(tier func(c fiber.Ctx) policy.Tier) policy.ConcurrencyOption { return httpmw.Tiers(tier) }
