// Package idempotency runs requests with the same Idempotency-Key once, and gives all of them the
// same answer, as fiber v3 middleware:
//
//	app.Post("/checkout", idempotency.New(orders, fibermw.ScopeBy(fibermw.ByContext("user")), policy.Required()), checkout)
//
// It stands behind authentication and authorisation, so that no answer is replayed to a client that
// may no longer see it; behind compression, so that answers are kept uncompressed; and before locks
// and concurrency limits, so that a replay needs neither. It is for routes: with Use, it would also
// keep and replay the 404 of a missing route.
//
// The mechanism behind it is an idempotency guard: package [guard].
package idempotency

import (
	"net/http"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// New returns middleware that runs the handler once for each scope and Idempotency-Key, and gives
// its answer to every repeat of the request. It answers refusals without the handler:
//
//   - 409 with Retry-After while the first request runs, after policy.Wait;
//   - 409 if its answer was not kept, or its outcome is unknown;
//   - 422 if the key was used for another request;
//   - 400 if the key is malformed, or missing where it is required, or if the client has not sent
//     the scope of the request;
//   - 413 if the body is larger than policy.MaxBody;
//   - 429 key-quota-exceeded with Retry-After if the scope is full (guard.WithMaxPerScope), and
//     too-many-at-once if its requests' bodies take more than a quarter of policy.MaxBodies;
//   - 500 if the application has not provided the scope, or if the same guard is in the chain
//     twice;
//   - 503 with Retry-After if the store is unavailable, unless policy.RunUnprotected, or if bodies
//     take too much memory.
//
// The fingerprint of a request, the kept answers, the content of a replay and the handler's context
// are as [github.com/lockkeeper/lockkeeper/nethttp/idempotency.New] documents, with fibermw.OnError.
//
// If the handler returns an error, the application's ErrorHandler makes the answer. To record it,
// the middleware calls the ErrorHandler itself, and returns nil, so that it runs once: middleware
// outside this one sees the status, and not the error.
//
// An answer of unknown length that is streamed (c.SendStreamWriter, c.SendStream without a size) is
// not kept: it begins when the handler has returned, and a repeat is refused with 409. The context
// of a handler does not end when its client leaves, which fasthttp does not report, and neither does
// guard.ClientContext. Fiber's timeout middleware stands outside: the handler runs on, and a repeat
// gets its answer.
//
// Options are policy.Required, policy.Dedupe, policy.Wait, policy.MaxWaiting, policy.Methods,
// policy.MaxBody, policy.MaxBodies, policy.Fingerprint, policy.JSONFingerprint, policy.KeyAlone,
// policy.OneService, policy.KeepStatus, policy.ReleaseStatus, policy.MaxRun, policy.Retention,
// policy.KeepHeaders, policy.DropHeaders, policy.StatusHeaders, policy.RunUnprotected, [KeyFrom],
// fibermw.Unless, fibermw.OnError and fibermw.OnDeny, and the options of package policy for every
// middleware. New panics if the guard is nil, the scope is the zero value, policy.Retention is less
// than the guard's lease, or options contradict each other.
func New(g *guard.Guard, scope fibermw.ScopeFunc, opts ...policy.IdempotencyOption) fiber.Handler {
	return adapter.Handler(httpmw.Idempotency(adapter.Fiber{}, "fibermw", g, scope, opts))
}

// KeyFrom reads the idempotency key with key instead of from the Idempotency-Key header, as
// [github.com/lockkeeper/lockkeeper/nethttp/idempotency.KeyFrom] does. It panics if key is nil.
func KeyFrom(key fibermw.KeyFunc) policy.IdempotencyOption { return httpmw.KeyFrom(key) }

// Answer returns the result of an operation that was not recorded, as the middleware replays it. It
// is for an operator, or the function of guard.WithReconcile, that determines an unknown outcome:
//
//	err := orders.Resolve(ctx, record, guard.Happened(idempotency.Answer(201, header, body)), "on-call", "receipt found")
//
// The header may be nil. Its Set-Cookie, Date and fields of a connection are not kept. Answer
// panics if status is not between 200 and 599.
func Answer(status int, header http.Header, body []byte) guard.Result {
	return httpmw.Answer(status, header, body)
}
