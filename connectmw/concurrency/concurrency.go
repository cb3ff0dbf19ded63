// Package concurrency limits how many calls of the same key run concurrently, as an interceptor for
// connect-go:
//
//	concurrency.New(reports, connectmw.ByContext(tenantKey{}), policy.Wait(time.Second))
//
// It is the last one before the handler, behind exclusive: a call that waits for a lock, or is
// replayed, holds no permit.
//
// The mechanism behind it is a semaphore: package [semaphore].
package concurrency

import (
	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// New returns an interceptor that runs the handler while it holds a permit, of weight 1, of the
// semaphore of the call's key, and answers without it if it does not get one:
//
//   - resource_exhausted, or with policy.Overload unavailable, with RetryInfo, if no permit is
//     free, or others wait for one. With policy.Wait, if the call got none within that time, or at
//     once if the queue is full (semaphore.WithMaxWaiting);
//   - invalid_argument if the client has not sent the key, or one of more than 1,024 bytes;
//   - unavailable with RetryInfo if the store is unavailable. With policy.FailOpen the handler runs
//     without a permit instead, the answer's header has "concurrency-status: bypassed", and
//     semaphore.FromContext finds none;
//   - internal if the application has not provided the key, which is logged once (policy.Logger),
//     if the key function fails, or if the same semaphore is in the chain twice with the same key.
//
// Permits are those of sem: a caller of sem.Acquire with the same key, in this process or another,
// leaves fewer permits for the handler. A semaphore on a memory store counts this process alone: a
// bulkhead. Waiters are served in the order in which they came. A stream has its permit for its
// whole life.
//
// The delay in RetryInfo is computed from the recent duration of handlers, the number of waiters
// and the capacity: 1 s to 1 h.
//
// The handler's context is the permit's. It ends
// when the permit is lost, with the cause that semaphore.Permit documents, and with the call's own
// context; neither stops a handler that does not look, and neither ends what a stream sends or
// receives. semaphore.FromContext finds the permit in it.
//
// The permit is released when the handler returns or panics, and not before, whether or not the
// client is still connected. The answer does not wait for the release, so a client that has it may
// find the permit in use for about one round trip to the store. If the permit was lost while the
// handler ran, connectmw.OnError is called; the answer is the handler's.
//
// A call whose client cancels while it waits gives up its place, also behind the idempotency
// interceptor, and the handler does not run.
//
// If the capacity adapts itself (semaphore.WithAdaptiveCapacity), the time of the handler is its
// sample. A call counts only if it took longer than the target if it panics, if its client has
// left, or if it ends with unknown, deadline_exceeded, unimplemented, internal, unavailable or
// data_loss. Streams do not count. A wait for the permit does not count.
//
// Options are policy.Wait, policy.Overload, policy.FailOpen, [Tiers], connectmw.Unless,
// connectmw.OnError and connectmw.OnDeny, and those of package policy for every middleware. New
// panics if sem or key is nil.
func New(sem *semaphore.Semaphore, key connectmw.KeyFunc, opts ...policy.ConcurrencyOption) connect.Interceptor {
	settings := setting.Of(opts)
	return adapter.Holding(middleware.NewConcurrency(sem, settings), key, settings)
}

// Tiers gives each call a tier, which may use a part of the capacity, and is served after the tiers
// that may use more (semaphore.Semaphore's Tier): policy.Critical all of it, policy.Normal 90 %,
// policy.Low 70 %, policy.Background 50 %; SetTierShares of sem changes the parts. So what matters
// less is refused first. A refused call is answered as without tiers. An unknown tier counts as
// policy.Background. If sem has a reserve, the tier's replaces it.
//
// The server decides about the tier, by what it knows: the method, the account of an authenticated
// client, a plan. A header field with which a client asks for a tier is a wish, which an attacker
// states as well. Read it only behind authentication, and give the lower of the wish and of what
// the account may have, which is the larger value.
//
// tier is called once for each call, after its key. Tiers panics if tier is nil.
func Tiers(tier func(call *connectmw.Call) policy.Tier) policy.ConcurrencyOption {
	return setting.Given("concurrency: Tiers", tier, func(s *setting.Settings) { s.Tiers = tier })
}
