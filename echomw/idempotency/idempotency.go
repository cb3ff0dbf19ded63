// Package idempotency has requests with the same Idempotency-Key run once and answered alike, as echo
// v4 middleware:
//
//	e.POST("/checkout", checkout, idempotency.New(orders, echomw.ScopeBy(echomw.ByContext("user")), policy.Required()))
//
// It stands behind authentication and authorisation, so that nobody is replayed what they may no
// longer see; behind compression, so that what is kept is not compressed; and before locks and
// concurrency limits, so that a replay needs neither. It is for routes, or groups of them: with Use, it
// would keep and replay also that no route was found.
package idempotency

import (
	"github.com/labstack/echo/v4"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/echohttp"
)

// New returns middleware that runs the handler once for each scope and Idempotency-Key, and gives
// its answer to whoever sends the same request again. The key is a structured-field String, quoted
// or bare, of 1 to 255 printable characters. Which request it is for is a fingerprint of method,
// path, query, content type and body.
//
// What a client sees:
//
//   - the handler's answer, the first time;
//   - the same status, header fields and body with "Idempotency-Replayed: true" after that; without
//     Set-Cookie, Date and what belongs to a connection;
//   - 409 with Retry-After while the first request runs;
//   - 422 if the key was used for another request;
//   - 409 response-not-retained if the answer was not kept: it was streamed, or larger than the
//     guard keeps (guard.WithMaxResult);
//   - 409 outcome-unknown if an attempt died, or panicked, and may have had effects;
//   - 400 if the key is malformed, given several times, or missing where it is required, or if the
//     request has no scope;
//   - 413 if the request's body is larger than policy.MaxBody;
//   - 503 with Retry-After if the store is unavailable, unless policy.RunUnprotected.
//
// Refusals are errors, returned to the application's HTTPErrorHandler; echo's own answers with a problem
// (RFC 9457). The handler's answer is recorded before it is sent, and sent even if it could not be
// recorded; the recording then goes on in the background, and echomw.OnError is told.
//
// If the handler of an attempt returns an error, its answer is what the HTTPErrorHandler makes of it.
// To record that, the middleware calls the HTTPErrorHandler itself, and returns nil, so that it runs
// once: middleware outside this one sees the status, and not the error.
//
// The handler's request has the attempt's context: guard.FromContext finds the attempt in it. The
// client's disconnecting does not end that context, and the handler runs to its end; a deadline of
// the request's context does. If the handler panics, the attempt is settled and the panic goes on.
//
// Options are policy.Required, policy.Methods, policy.MaxBody, policy.KeepStatus,
// policy.ReleaseStatus, policy.RunUnprotected, echomw.Unless, echomw.OnError and [Deny]. New panics if
// the guard is nil or the scope is the zero value.
func New(g *guard.Guard, scope echomw.ScopeFunc, opts ...policy.IdempotencyOption) echo.MiddlewareFunc {
	return echohttp.Idempotency[echo.HandlerFunc](adapter.Echo{}, "echomw", g, scope, opts)
}

// Deny has refusals answered by deny instead of by the HTTPErrorHandler. The handler does not run, and
// the header fields of the refusal are set; deny writes status and body, or returns an error for the
// HTTPErrorHandler.
func Deny(deny func(c echo.Context, d policy.Denial) error) policy.IdempotencyOption {
	return echohttp.DenyIdempotency(deny)
}
