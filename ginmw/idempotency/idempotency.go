// Package idempotency has requests with the same Idempotency-Key run once and answered alike, as
// gin middleware:
//
//	r.POST("/checkout", idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user")), policy.Required()), checkout)
//
// It stands behind authentication and authorisation, so that nobody is replayed what they may no
// longer see; behind compression, so that what is kept is not compressed; and before locks and
// concurrency limits, so that a replay needs neither.
package idempotency

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/internal/hook"
	"github.com/lockkeeper/lockkeeper/internal/httpguard"
	"github.com/lockkeeper/lockkeeper/internal/setting"
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
// even if it could not be recorded; the recording then goes on in the background.
//
// The handler's request has the attempt's context: guard.FromContext finds the attempt in it. The
// client's disconnecting does not end that context, and the handler runs to its end; a deadline of
// the request's context does. If the handler panics, the attempt is settled and the panic goes on.
//
// Options are policy.Required, policy.Methods, policy.MaxBody, policy.KeepStatus,
// policy.ReleaseStatus, policy.RunUnprotected, ginmw.Unless and [Deny]. New panics if the guard is
// nil or the scope is the zero value.
func New(g *guard.Guard, scope ginmw.ScopeFunc, opts ...policy.IdempotencyOption) gin.HandlerFunc {
	if g == nil {
		panic("idempotency: New: nil guard")
	}
	if scope.IsZero() {
		panic("idempotency: New: no scope; use ginmw.ScopeBy or ginmw.Unscoped")
	}
	settings := setting.ForIdempotency(opts)
	hooks := hook.Of("idempotency", settings.Common)
	middleware := httpguard.New(g, settings)

	return func(c *gin.Context) {
		if hooks.Skips(c) || c.FullPath() == "" { // nothing will handle it
			return
		}
		middleware.Serve(hinter{c.Writer}, c.Request, &exchange{c, scope, hooks})
	}
}

// Deny has refusals answered by deny instead of by a problem body. The chain has been ended, and
// the header fields of the refusal are set; deny writes status and body.
func Deny(deny func(c *gin.Context, d policy.Denial)) policy.IdempotencyOption {
	if deny == nil {
		panic("idempotency: Deny: nil function")
	}
	return option{deny}
}

type option struct {
	deny func(*gin.Context, policy.Denial)
}

func (o option) ApplyIdempotency(s *setting.Idempotency) { s.Deny = o.deny }

// exchange is a httpguard.Exchange on gin.
type exchange struct {
	c     *gin.Context
	scope ginmw.ScopeFunc
	hooks hook.Hooks
}

func (x *exchange) Scope() (string, error) { return x.scope.Of(x.c) }

func (x *exchange) DefaultStatus() int { return x.c.Writer.Status() }

func (x *exchange) End() { x.c.Abort() }

func (x *exchange) Deny(d policy.Denial) { x.hooks.Deny(x.c, d) }

func (x *exchange) Report(err error) { _ = x.c.Error(err) }

func (x *exchange) Pass(r *http.Request) {
	original := x.c.Request
	x.c.Request = r
	defer func() { x.c.Request = original }()
	x.c.Next()
}

func (x *exchange) Run(capture *httpguard.Capture, r *http.Request) {
	original := x.c.Writer
	x.c.Writer = &writer{original, capture}
	defer func() { x.c.Writer = original }()
	x.Pass(r)
}
