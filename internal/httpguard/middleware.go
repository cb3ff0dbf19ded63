// Package httpguard is the idempotency middleware of every HTTP framework, but for the framework.
package httpguard

import (
	"context"
	"fmt"
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

// defaultMaxBodies is policy.MaxBodies if it is not set.
const defaultMaxBodies = 64 << 20

// Middleware guards requests.
type Middleware struct {
	decider   middleware.Idempotency
	maxResult int
	bodies    budget
	settings  setting.Idempotency
}

// New returns a middleware with a guard that is not nil. It panics, as the New of package idempotency, if
// the settings contradict each other.
func New(g *guard.Guard, s setting.Idempotency) *Middleware {
	if s.KeyAlone && s.Fingerprint != nil {
		panic("idempotency: New: policy.Fingerprint says nothing with policy.KeyAlone")
	}
	one := s.MaxBody
	if s.Fingerprint != nil { // which is shown a copy
		one *= 2
	}
	if s.MaxBodies == 0 {
		s.MaxBodies = max(defaultMaxBodies, one)
	}
	if s.MaxBodies < one {
		panic(fmt.Sprintf("idempotency: New: policy.MaxBodies (%d) is less than one request may take (%d)", s.MaxBodies, one))
	}
	return &Middleware{
		decider:   middleware.NewIdempotency(g, s.Common, s.Open, s.MaxRun),
		maxResult: g.MaxResult(),
		bodies:    budget{max: s.MaxBodies},
		settings:  s,
	}
}

// Exchange is a request and its answer in a framework's hands.
type Exchange interface {
	// Key returns the key that the application's function, which the settings have, reads from r.
	Key(r *http.Request) (string, error)
	// Scope returns the scope of the request's key.
	Scope() (string, error)
	// StatusOf returns the status of an error of the framework's own, 0 of another.
	StatusOf(err error) int
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
	b := &body{budget: &m.bodies}
	defer b.release()
	refuse := func(d policy.Denial) {
		b.release() // the client may take its time to read the denial
		middleware.Fail(r.Context(), d)
		m.deny(w, x, d)
	}
	key, denial := m.key(w.Header(), r, b, x)
	if denial != nil {
		refuse(*denial)
		return
	}
	if key == "" {
		passed := r
		if m.settings.Key != nil {
			passed = withBody(r.Context(), r, b)
			defer httprequest.KeepForm(r, passed)
		}
		x.Pass(passed)
		return
	}
	scope, err := x.Scope()
	if err != nil {
		refuse(m.decider.NoKey(r.Context(), err))
		return
	}
	fingerprint, denial := m.fingerprint(w.Header(), r, b, x)
	if denial != nil {
		refuse(*denial)
		return
	}
	op := guard.Operation{Scope: scope, Key: key, Fingerprint: fingerprint}
	e := &exchange{Exchange: x, m: m, w: w, r: r, body: b}
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
	body    *body
	capture *Capture // of a handler that has run
	mark    middleware.Mark
}

func (x *exchange) Mark() *middleware.Mark {
	x.mark.ID = httprequest.ID(x.r)
	return &x.mark
}

func (x *exchange) Run(ctx context.Context) middleware.Outcome {
	c := NewCapture(x.w, middleware.NoteOf(ctx), x.m.maxResult, x.DefaultStatus())
	handled := withBody(ctx, x.r, x.body)
	x.Exchange.Run(c, handled)
	c.end()
	httprequest.KeepForm(x.r, handled)
	x.capture = c
	outcome := middleware.Outcome{Ending: x.m.ending(x.r.Method, c.Status()), Status: c.Status()}
	if c.refused() {
		outcome.Ending = middleware.Refused
	}
	if !c.passing && !partial(outcome) {
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
	if !validStatus(result.Status) {
		return errDamaged
	}
	x.End()
	kept.header = append(kept.header, change{name: replayedHeader, values: []string{"true"}})
	_ = kept.send(x.w, result.Status, len(kept.trailer) > 0)
	return nil
}

func (x *exchange) Unconfirmed() {
	if x.m.settings.StatusHeaders {
		x.capture.set(statusHeader, "unconfirmed")
	}
}

func (x *exchange) Deny(d policy.Denial) { x.m.deny(x.w, x.Exchange, d) }

func (m *Middleware) deny(w http.ResponseWriter, x Exchange, d policy.Denial) {
	httpdenial.SetHeader(w.Header(), &d, m.settings.ProblemTypes)
	x.Deny(d)
}
