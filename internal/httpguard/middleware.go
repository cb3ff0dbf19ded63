// Package httpguard is the idempotency middleware of every HTTP framework, but for the framework.
package httpguard

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/httprequest"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"
	statusHeader   = "Idempotency-Status"
)

// Middleware guards requests.
type Middleware struct {
	decider   middleware.Idempotency
	maxResult int
	settings  setting.Idempotency
}

// New returns a middleware with a guard that is not nil.
func New(g *guard.Guard, s setting.Idempotency) *Middleware {
	return &Middleware{
		decider:   middleware.Idempotency{Guard: g, RunUnprotected: s.RunUnprotected},
		maxResult: g.MaxResult(),
		settings:  s,
	}
}

// Exchange is a request and its answer in a framework's hands.
type Exchange interface {
	// Scope returns the scope of the request's key.
	Scope() (string, error)
	// Pass has the handler answer the request as if there were no middleware.
	Pass(r *http.Request)
	// Run has the handler answer the request into c. When it returns, or panics, the framework's
	// own writer is in place again.
	Run(c *Capture, r *http.Request)
	// DefaultStatus is that of an answer for which the handler sets none.
	DefaultStatus() int
	// End keeps the handler from running, for an answer that is not its own.
	End()
	// Deny ends the exchange with a denial.
	Deny(policy.Denial)
	// Report tells of an error that does not change the answer.
	Report(error)
}

// Serve answers a request: it runs it, replays it or denies it.
func (m *Middleware) Serve(w http.ResponseWriter, r *http.Request, x Exchange) {
	if !slices.Contains(m.settings.Methods, r.Method) {
		x.Pass(r)
		return
	}
	key, denial := middleware.IdempotencyKey(r.Header.Values(keyHeader), m.settings.Required)
	if denial != nil {
		deny(w, x, *denial)
		return
	}
	if key == "" {
		x.Pass(r)
		return
	}
	scope, err := x.Scope()
	if err != nil {
		d := middleware.NoKey(err)
		middleware.Fail(r.Context(), d)
		deny(w, x, d)
		return
	}
	body, fingerprint, err := readRequest(r, m.settings.MaxBody)
	switch {
	case errors.Is(err, errBodyTooLarge):
		deny(w, x, policy.Denial{Reason: policy.BodyTooLarge})
		return
	case err != nil:
		deny(w, x, policy.Denial{Reason: policy.BodyUnreadable, Err: err})
		return
	}
	op := guard.Operation{Scope: scope, Key: key, Fingerprint: fingerprint}
	e := &exchange{Exchange: x, m: m, w: w, r: r, body: body}
	m.decider.Serve(r.Context(), op, e)
	if e.capture != nil { // sent when it is recorded
		e.capture.send()
	}
}

// exchange is a middleware.GuardedExchange in HTTP.
type exchange struct {
	Exchange
	m       *Middleware
	w       http.ResponseWriter
	r       *http.Request
	body    []byte
	capture *Capture // of a handler that has run
}

func (x *exchange) Run(ctx context.Context) middleware.Outcome {
	c := NewCapture(x.w, x.m.maxResult, x.DefaultStatus())
	handled := withBody(ctx, x.r, x.body)
	x.Exchange.Run(c, handled)
	httprequest.KeepForm(x.r, handled)
	x.capture = c
	outcome := middleware.Outcome{Ending: x.m.ending(c.Status()), Status: c.Status()}
	if !c.passing {
		outcome.Data = c.response().encode()
	}
	return outcome
}

func (x *exchange) Bypass() {
	x.w.Header().Set(statusHeader, "bypassed")
	handled := withBody(x.r.Context(), x.r, x.body)
	x.Pass(handled)
	httprequest.KeepForm(x.r, handled)
}

func (x *exchange) Replay(result *guard.Result) error {
	kept, err := decodeResponse(result.Data)
	if err != nil {
		return err
	}
	x.End()
	h := x.w.Header()
	for name, values := range kept.header {
		h[name] = values
	}
	h.Set(replayedHeader, "true")
	x.w.WriteHeader(result.Status)
	if len(kept.body) > 0 {
		_, _ = x.w.Write(kept.body)
	}
	return nil
}

func (x *exchange) Deny(d policy.Denial) { deny(x.w, x.Exchange, d) }

func deny(w http.ResponseWriter, x Exchange, d policy.Denial) {
	httpdenial.SetHeader(w.Header(), d)
	x.Deny(d)
}

// ending says whether an answer is for those who ask again, too.
func (m *Middleware) ending(status int) middleware.Ending {
	if keep, ok := m.settings.Keep[status]; ok {
		if keep {
			return middleware.Final
		}
		return middleware.Refused
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusConflict, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return middleware.Refused
	}
	if status >= 500 {
		return middleware.Failed
	}
	return middleware.Final
}
