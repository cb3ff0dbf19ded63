// Package idempotency runs requests with the same Idempotency-Key once, and gives all of them the
// same answer, as net/http middleware:
//
//	once := idempotency.New(orders, nethttp.ScopeBy(nethttp.ByContext(userKey{})), policy.Required())
//	mux.Handle("POST /checkout", once(checkout))
//
// It stands behind authentication and authorisation, so that no answer is replayed to a client that
// may no longer see it; behind compression, so that answers are kept uncompressed; and before locks
// and concurrency limits, so that a replay needs neither. It stands round the handlers that need
// it, not round the mux: there, it would also keep and replay the 404 of a missing route.
//
// [Transport] is the client's side.
//
// The mechanism behind it is an idempotency guard: package [guard].
package idempotency

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/adapter"
)

// New returns middleware that runs the handler once for each scope and Idempotency-Key, and gives
// its answer to every repeat of the request. The key is a structured-field String, quoted or bare,
// of 1 to 255 printable characters; [KeyFrom] reads another one. A key belongs to one request,
// identified by a fingerprint of method, host, path, query, content type, preconditions, Range and
// body. policy.Fingerprint replaces the body in it; policy.KeyAlone compares only method, host and
// path.
//
// The client gets
//
//   - the handler's answer, the first time;
//   - after that, "Idempotency-Replayed: true" and the same status, header fields, body and
//     trailers, but without Set-Cookie, Date and the fields of a connection. Fields that the
//     handler deleted, or suppressed by a nil value, are missing in the replay too;
//   - 409 in-flight with Retry-After while the first request runs. With policy.Wait a repeat waits
//     for the answer first, and gets it, or runs if the answer is released; at most 16 of them in a
//     process (policy.MaxWaiting), one more is refused at once;
//   - 422 if the key was used for another request;
//   - 409 response-not-retained if the answer was not kept: it was a stream of events, or larger
//     than the guard keeps (guard.WithMaxResult, guard.WithMaxScopeBytes);
//   - 429 key-quota-exceeded if the request is new and its scope has its maximum of records
//     (guard.WithMaxPerScope), also with policy.RunUnprotected. Retry-After is when a record
//     expires;
//   - 409 outcome-unknown if an attempt died, or panicked, and may have had effects. The body of
//     this and of in-flight has the operation's ID, by which support finds it (guard.Guard's
//     InspectID);
//   - 400 if the key is malformed, given several times, or missing where it is required, if the
//     client has not sent the scope of the request, if the body breaks off, or if
//     policy.Fingerprint refuses it;
//   - 500 if the application has not provided the scope, such as the user whom authentication
//     should have put into the context, or if the same guard is in the request's chain twice; both
//     are logged once (policy.Logger);
//   - 413 if the request's body is larger than policy.MaxBody, or than a limit outside lets pass;
//   - 429 too-many-at-once with Retry-After if the bodies of its scope's requests would take more
//     than a quarter of policy.MaxBodies;
//   - 503 with Retry-After if the store is unavailable, unless policy.RunUnprotected; or if the
//     bodies of all requests together would take more memory than policy.MaxBodies.
//
// A request without a key runs unguarded. With policy.Dedupe it is guarded, too, as a double click:
// a repeat with the same fingerprint, in the same scope, waits for the answer to the first one, for
// 10 s if there is no policy.Wait, and gets that answer until the window is over.
//
// Refusals are problems (RFC 9457). The handler's answer is recorded before it is sent, and sent
// even if it could not be recorded; recording it is then retried in the background, and
// nethttp.OnError is called.
//
// To record the answer, the middleware gives the handler a ResponseWriter that holds it back. Flush
// lets the answer through, as it is written from then on, and a copy is kept when the handler
// returns, except of a stream of events. Hijack passes the connection to the handler, and nothing
// is kept. Both, and deadlines, work through http.ResponseController, and by asserting http.Flusher
// and http.Hijacker. Until the answer is sent the handler has a header of its own. WriteHeader
// panics on an invalid status as net/http does; that is an attempt that panicked.
//
// A table in docs/idempotency.md lists the answers that are kept, and the ones that are released,
// so that the next request runs. A refusal by middleware of this module behind this one is
// released.
//
// The handler's request has the attempt's context: guard.FromContext finds the attempt in it. A
// client that disconnects does not end that context, and the handler runs to its end. A deadline of
// the request's context ends it, and policy.MaxRun (5 minutes if not set) with the cause
// policy.ErrMaxRun. guard.ClientContext ends when the client disconnects.
//
// If the handler panics, the attempt is settled and the panic continues. If the handler returns
// without an answer, and its context, the request's, or the context of a lock or a permit behind
// the guard is over, the attempt is settled as one that panicked, and the client gets 503. A
// handler whose success is an empty 200 calls WriteHeader.
//
// Middleware that answers while its handler runs, such as http.TimeoutHandler, belongs outside:
// inside, its answer is the one that is recorded, whatever the handler does after it. If the
// middleware is given an http.TimeoutHandler, it is logged.
//
// Options are policy.Required, policy.Dedupe, policy.Wait, policy.MaxWaiting, policy.Methods,
// policy.MaxBody, policy.MaxBodies, policy.Fingerprint, policy.JSONFingerprint, policy.KeyAlone,
// policy.OneService, policy.KeepStatus, policy.ReleaseStatus, policy.MaxRun, policy.Retention,
// policy.KeepHeaders, policy.DropHeaders, policy.StatusHeaders, policy.RunUnprotected, [KeyFrom],
// nethttp.Unless, nethttp.OnError and nethttp.OnDeny, and the options of package policy for every
// middleware. New panics if the guard is nil, the scope is the zero value, policy.Retention is less
// than the guard's lease, or options contradict each other; the returned function panics if the
// handler is nil.
func New(g *guard.Guard, scope nethttp.ScopeFunc, opts ...policy.IdempotencyOption) func(http.Handler) http.Handler {
	m := httpmw.Idempotency(adapter.NetHTTP{}, "nethttp", g, ofRequest{scope}, opts)
	return adapter.UntilItEnds("idempotency", setting.Of(opts).Logger, m)
}

// KeyFrom reads the idempotency key with key instead of from the Idempotency-Key header: from
// another header, a field of the body, a webhook's event ID. The key has 1 to 255 printable ASCII
// characters, and is used unchanged. If key returns policy.ErrNoKey, or an empty key, the request
// has none: policy.Required refuses it with status 400; otherwise it runs unguarded, or guarded by
// policy.Dedupe. Any other error is the server's: status 500.
//
// The body is read before, also of requests without a key, so that key can read it, and the handler
// again: policy.MaxBody and policy.MaxBodies apply to all requests of the guarded methods. KeyFrom
// panics if key is nil.
func KeyFrom(key nethttp.KeyFunc) policy.IdempotencyOption { return httpmw.KeyFrom(key) }

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

// ofRequest is a httpmw.Scope.
type ofRequest struct{ nethttp.ScopeFunc }

func (s ofRequest) Of(c adapter.Context) (string, error) { return s.ScopeFunc.Of(c.R) }
