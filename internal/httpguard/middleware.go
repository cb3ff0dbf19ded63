// Package httpguard is the idempotency middleware of every HTTP framework, but for the framework.
package httpguard

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/httprequest"
	"github.com/lockkeeper/lockkeeper/internal/outage"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

const (
	replayedHeader = "Idempotency-Replayed"
	statusHeader   = "Idempotency-Status"
)

// Middleware guards requests.
type Middleware struct {
	guard    *guard.Guard
	settings setting.Idempotency
}

// New returns a middleware with a guard that is not nil.
func New(g *guard.Guard, s setting.Idempotency) *Middleware {
	return &Middleware{guard: g, settings: s}
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
	key, err := readKey(r.Header)
	switch {
	case errors.Is(err, errNoHeader) && !m.settings.Required:
		x.Pass(r)
		return
	case errors.Is(err, errNoHeader):
		m.deny(w, x, policy.Denial{Reason: policy.KeyMissing, Detail: "Send an Idempotency-Key."})
		return
	case err != nil:
		m.deny(w, x, policy.Denial{Reason: policy.KeyMalformed, Detail: sentence(err)})
		return
	}
	scope, err := x.Scope()
	if err != nil {
		m.deny(w, x, httpdenial.NoKey(err))
		return
	}
	body, fingerprint, err := readRequest(r, m.settings.MaxBody)
	switch {
	case errors.Is(err, errBodyTooLarge):
		m.deny(w, x, policy.Denial{Reason: policy.BodyTooLarge})
		return
	case err != nil:
		m.deny(w, x, policy.Denial{Reason: policy.BodyUnreadable, Err: err})
		return
	}

	// A client that leaves changes nothing: whether it is there for the answer or comes back for
	// it, the operation runs to its end.
	ctx, cancel := detach(r.Context())
	defer cancel()
	attempt, result, err := m.guard.Begin(ctx, guard.Operation{Scope: scope, Key: key, Fingerprint: fingerprint})
	switch {
	case err == nil && result != nil:
		m.replay(w, x, result)
	case err == nil:
		handled := withBody(attempt.Context(), r, body)
		m.run(w, handled, x, attempt)
		httprequest.KeepForm(r, handled)
	case errors.Is(err, outage.ErrUnavailable) && m.settings.RunUnprotected:
		x.Report(err)
		w.Header().Set(statusHeader, "bypassed")
		handled := withBody(r.Context(), r, body)
		x.Pass(handled)
		httprequest.KeepForm(r, handled)
	default:
		m.deny(w, x, denial(err))
	}
}

// run has the handler make the attempt, settles it, and sends the answer.
func (m *Middleware) run(w http.ResponseWriter, r *http.Request, x Exchange, attempt *guard.Attempt) {
	ctx := r.Context()
	noted, note := httpdenial.WithNote(ctx)
	c := NewCapture(w, m.guard.MaxResult(), x.DefaultStatus())
	returned := false
	defer func() {
		if !returned { // the handler panicked, and goes on to do so; nothing was held back for long
			m.report(x, m.settlePanic(ctx, attempt))
		}
	}()
	handled := r.WithContext(noted)
	x.Run(c, handled)
	returned = true
	httprequest.KeepForm(r, handled)
	if note.Refused() { // by a lock or a limit behind the guard: nothing has run
		m.report(x, attempt.Abandon(ctx))
	} else {
		m.report(x, m.settle(ctx, attempt, c))
	}
	c.send()
}

func (m *Middleware) settle(ctx context.Context, attempt *guard.Attempt, c *Capture) error {
	switch {
	case !m.keeps(c.Status(), attempt):
		return attempt.Abandon(ctx)
	case c.passing:
		return attempt.CompleteNotRetained(ctx, c.Status())
	default:
		return attempt.Complete(ctx, guard.Result{Status: c.Status(), Data: c.response().encode()})
	}
}

// settlePanic settles an attempt whose handler did not return.
func (m *Middleware) settlePanic(ctx context.Context, attempt *guard.Attempt) error {
	if m.mayRerun(attempt) {
		return attempt.Abandon(ctx)
	}
	return attempt.CompleteUnknown(ctx)
}

func (m *Middleware) mayRerun(attempt *guard.Attempt) bool {
	return m.guard.MayRerun() || !attempt.Dirty()
}

// keeps says whether an answer is for those who ask again, too.
func (m *Middleware) keeps(status int, attempt *guard.Attempt) bool {
	if keep, ok := m.settings.Keep[status]; ok {
		return keep
	}
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusRequestTimeout,
		http.StatusConflict, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return false // nothing was done, and it may be otherwise the next time
	}
	return status < 500 || !m.mayRerun(attempt)
}

// report tells of an answer that could not be recorded. It is sent all the same.
func (m *Middleware) report(x Exchange, err error) {
	if err != nil && !errors.Is(err, guard.ErrSettled) { // the handler may settle the attempt itself
		x.Report(err)
	}
}

func (m *Middleware) replay(w http.ResponseWriter, x Exchange, result *guard.Result) {
	kept, err := decodeResponse(result.Data)
	if err != nil {
		m.deny(w, x, policy.Denial{Reason: policy.ResponseNotRetained, OriginalStatus: result.Status, Err: err})
		return
	}
	x.End()
	h := w.Header()
	for name, values := range kept.header {
		h[name] = values
	}
	h.Set(replayedHeader, "true")
	w.WriteHeader(result.Status)
	if len(kept.body) > 0 {
		_, _ = w.Write(kept.body)
	}
}

func (m *Middleware) deny(w http.ResponseWriter, x Exchange, d policy.Denial) {
	httpdenial.SetHeader(w.Header(), d)
	x.Deny(d)
}

// denial says what a client is told of an error of Begin.
func denial(err error) policy.Denial {
	var (
		inFlight    *guard.InFlightError
		notRetained *guard.NotRetainedError
	)
	switch {
	case errors.As(err, &inFlight):
		return policy.Denial{Reason: policy.InFlight, RetryAfter: max(inFlight.RetryAfter, time.Second)}
	case errors.As(err, &notRetained):
		return policy.Denial{Reason: policy.ResponseNotRetained, OriginalStatus: notRetained.Status}
	case errors.Is(err, guard.ErrMismatch):
		return policy.Denial{Reason: policy.KeyReused}
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return policy.Denial{Reason: policy.OutcomeUnknown}
	case errors.Is(err, guard.ErrInvalidOperation):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}
	}
	return httpdenial.Unavailable(err)
}

// sentence makes an error of this package a sentence for the client.
func sentence(err error) string {
	text := err.Error()
	return string(text[0]-'a'+'A') + text[1:] + "."
}
