// Package fence is the resource's side of a lock: it refuses writes of holders that have lost it.
//
// No lock that expires can prevent a paused process from writing after it wakes: a lease ends the
// holder's context, but a paused holder cannot check it. So every grant has a larger number than
// all earlier grants, and the resource refuses a smaller number than the largest that it has seen.
//
//	lease, err := carts.Lock(ctx, "42")
//	…
//	err = store.Save(lease.Context(), cart, lease.Fence()) // refuses the number of an earlier holder
//
// The resource keeps a [Mark], and must compare and write in one atomic step. For a resource in
// Redis that step is in package redisfence, for a row or a transaction in SQL in package sqlfence,
// and for a resource in process memory it is [Gate.Do].
//
// # Over the wire
//
// A holder that asks another service to do the work sends its fence with the request, as the header
// field [Header]. The packages called fenced, of each framework, have the middleware that refuses a
// request whose fence is stale, by the marks of a [Checker], and the client side that sends a
// lease's fence. The middleware checks before the handler runs. A handler that may be paused for
// long after that gets the token with [FromContext], and compares it again where it writes.
package fence
