// Package fence is the resource's side of a lock: it refuses the writes of holders that have lost
// it.
//
// No lock that expires can keep a paused process from writing after it wakes: a lease tells its
// holder when to stop, but a holder that does not run cannot look. Every grant therefore carries a
// number that is larger than that of every grant before it, and whoever keeps the data refuses a
// number that is smaller than the largest it has seen.
//
//	lease, err := carts.Lock(ctx, "42")
//	…
//	err = store.Save(lease.Context(), cart, lease.Fence()) // refuses the number of an earlier holder
//
// The resource keeps a [Mark], and must do two things in one atomic step: compare, and write. For a
// resource in Redis that step is in package redisfence, for a row or a transaction in SQL in package
// sqlfence, and for one that lives in a process it is [Gate.Do].
//
// # Over the wire
//
// A holder that asks another service to do the work sends its fence with the request, as the header
// field [Header]. The packages called fenced, of each framework, have the middleware that refuses a
// request whose fence is stale, by the marks of a [Checker], and what sends a lease's fence from a
// client. The middleware looks before the handler runs. A handler that may be paused for long after
// that finds the token with [FromContext], and compares it again where it writes.
package fence
