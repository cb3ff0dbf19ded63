// Package exclusive runs calls of the same key one at a time, as an interceptor for connect-go:
//
//	exclusive.New(carts, connectmw.ByField("cart_id"), policy.Wait(2*time.Second))
//
// It stands behind authentication and authorisation, so that unauthenticated requests cannot block
// others, and behind idempotency, so that a replay takes no lock.
//
// The mechanism behind it is a lock: package [lock].
package exclusive

import (
	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// New returns an interceptor that runs the handler while it holds the lock of the call's key, and
// answers without it if it does not get the lock:
//
//   - aborted with RetryInfo if the lock is held. With policy.Wait, if it was not released within
//     that time, or at once if policy.MaxWaiting calls (1,024 if not set) are waiting
//     already;
//   - invalid_argument if the client has not sent the key, or one of more than 1,024 bytes;
//   - unavailable with RetryInfo if the store is unavailable. With policy.RunUnprotected the
//     handler runs without the lock instead, the answer's header has "lock-status: bypassed", and
//     lock.FromContext finds none;
//   - internal if the application has not provided the key, which is logged once (policy.Logger),
//     or if the key function fails.
//
// The lock is that of locker: a caller of locker.Lock with the same key, in this process or
// another, excludes the handler. Waiters get it in order of arrival. A stream has the lock for its
// whole life.
//
// The handler's context is the lease's. It ends
// when the lock is lost, with the cause that lock.Lease documents, and with the call's own context;
// neither stops a handler that does not look, and neither ends what a stream sends or receives.
// lock.FromContext finds the lease in it, whose fence belongs into every write.
//
// The lock is released when the handler returns or panics. If it was lost while the handler ran,
// connectmw.OnError is called; the answer is the handler's.
//
// A call whose client cancels while it waits gives up its place, also behind the idempotency
// interceptor, and the handler does not run.
//
// A call that passes two of these interceptors with the same locker and key holds the lock once.
//
// Options are policy.Wait, policy.MaxWaiting, policy.RunUnprotected, connectmw.Unless,
// connectmw.OnError and connectmw.OnDeny, and those of package policy for every middleware. New
// panics if locker or key is nil.
func New(locker *lock.Locker, key connectmw.KeyFunc, opts ...policy.ExclusiveOption) connect.Interceptor {
	settings := setting.Of(opts)
	return adapter.Holding(middleware.NewExclusive(locker, settings), key, settings)
}
