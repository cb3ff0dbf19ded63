// Package idempotency has requests with the same Idempotency-Key run once and answered alike, as
// net/http middleware:
//
//	once := idempotency.New(orders, nethttp.ScopeBy(nethttp.ByContext(userKey{})), policy.Required())
//	mux.Handle("POST /checkout", once(checkout))
//
// It stands behind authentication and authorisation, so that nobody is replayed what they may no
// longer see; behind compression, so that what is kept is not compressed; and before locks and
// concurrency limits, so that a replay needs neither. It stands round the handlers that need it, not
// round the mux: there, it would keep and replay also that no route was found.
package idempotency

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpguard"
	"github.com/lockkeeper/lockkeeper/internal/setting"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/hook"
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
// Refusals are problems (RFC 9457). The handler's answer is recorded before it is sent, and sent
// even if it could not be recorded; the recording then goes on in the background, and
// nethttp.OnError is told.
//
// To record the answer, the handler is given a ResponseWriter that holds it back. Flush lets it
// through, as it is written from then on, and so does Hijack, which hands over the connection: that
// is what is not kept. Both, and deadlines, work through http.ResponseController, and by asserting
// http.Flusher and http.Hijacker. Trailers are sent, and are not part of a replay.
//
// The handler's request has the attempt's context: guard.FromContext finds the attempt in it. The
// client's disconnecting does not end that context, and the handler runs to its end; a deadline of
// the request's context does. If the handler panics, the attempt is settled and the panic goes on.
//
// Options are policy.Required, policy.Methods, policy.MaxBody, policy.KeepStatus,
// policy.ReleaseStatus, policy.RunUnprotected, nethttp.Unless, nethttp.OnError and [Deny]. New
// panics if the guard is nil or the scope is the zero value, and what it returns if the handler is
// nil.
func New(g *guard.Guard, scope nethttp.ScopeFunc, opts ...policy.IdempotencyOption) func(http.Handler) http.Handler {
	if g == nil {
		panic("idempotency: New: nil guard")
	}
	if scope.IsZero() {
		panic("idempotency: New: no scope; use nethttp.ScopeBy or nethttp.Unscoped")
	}
	settings := setting.ForIdempotency(opts)
	hooks := hook.Of("idempotency", settings.Common)
	middleware := httpguard.New(g, settings)

	return hooks.Middleware(func(x hook.Exchange) {
		middleware.Serve(x.Writer, x.Request, &exchange{x, scope})
	})
}

// Deny has refusals answered by deny instead of by a problem body. The handler does not run, and the
// header fields of the refusal are set; deny writes status and body.
func Deny(deny func(w http.ResponseWriter, r *http.Request, d policy.Denial)) policy.IdempotencyOption {
	if deny == nil {
		panic("idempotency: Deny: nil function")
	}
	return option{deny}
}

type option struct {
	deny func(http.ResponseWriter, *http.Request, policy.Denial)
}

func (o option) ApplyIdempotency(s *setting.Idempotency) { s.Deny = o.deny }

// exchange is a httpguard.Exchange on net/http.
type exchange struct {
	hook.Exchange
	scope nethttp.ScopeFunc
}

func (x *exchange) Scope() (string, error) { return x.scope.Of(x.Request) }

func (x *exchange) DefaultStatus() int { return http.StatusOK }

// End does nothing: a handler that is not called does not run.
func (x *exchange) End() {}

func (x *exchange) Pass(r *http.Request) { x.Exchange.Run(r) }

func (x *exchange) Run(c *httpguard.Capture, r *http.Request) { x.Next.ServeHTTP(c, r) }
