package httpmw

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"
	statusHeader   = "Idempotency-Status"
)

// defaultMaxBodies is policy.MaxBodies if it is not set.
const defaultMaxBodies = 64 << 20

// Scope is a framework's ScopeFunc.
type Scope[C any] interface {
	IsZero() bool
	Of(c C) (string, error)
}

// Idempotency is idempotency.New of the framework whose package is called name.
func Idempotency[C any](a Adapter[C], name string, g *guard.Guard, scope Scope[C], opts []policy.IdempotencyOption) Middleware[C] {
	m := newIdempotency(a, name, g, scope, opts)
	return m.lending(m.serve)
}

func newIdempotency[C any](
	a Adapter[C], name string, g *guard.Guard, scope Scope[C], opts []policy.IdempotencyOption,
) *idempotency[C] {
	s := setting.Of(opts)
	decider := middleware.NewIdempotency(g, s)
	if scope.IsZero() {
		panic(fmt.Sprintf("idempotency: New: no scope; use %[1]s.ScopeBy or %[1]s.Unscoped", name))
	}
	if s.KeyAlone && s.Fingerprint != nil {
		panic("idempotency: New: policy.Fingerprint has no effect with policy.KeyAlone")
	}
	one := s.MaxBody
	if s.Fingerprint != nil { // it gets a copy
		one *= 2
	}
	if s.MaxBodies == 0 {
		s.MaxBodies = max(defaultMaxBodies, one)
	}
	if s.MaxBodies < one {
		panic(fmt.Sprintf("idempotency: New: policy.MaxBodies (%d) is less than one request may take (%d)", s.MaxBodies, one))
	}
	return &idempotency[C]{
		base:      newBase(a, "idempotency", s),
		decider:   decider,
		scope:     scope,
		maxResult: g.MaxResult(),
		bodies:    budget{max: s.MaxBodies},
		shares:    shares{max: max(s.MaxBodies/scopeParts, one)},
		fields:    fieldsOf(&s),
		settings:  s,
	}
}

// idempotency is a middleware that guards requests.
type idempotency[C any] struct {
	*base[C]
	decider   middleware.Idempotency
	scope     Scope[C]
	maxResult int
	bodies    budget
	shares    shares
	fields    fields
	settings  setting.Settings
}

// Answer is idempotency.Answer of every framework.
func Answer(status int, header http.Header, body []byte) guard.Result {
	if status < 200 || status > 599 {
		panic(fmt.Sprintf("idempotency: Answer: %d is no final status", status))
	}
	given := make(http.Header, len(header))
	for name, values := range header {
		given[http.CanonicalHeaderKey(name)] = values
	}
	return guard.Result{Status: status, Data: response{header: changes(nil, given), body: body}.encode(fields{})}
}

// serve runs a request, replays its answer, or refuses it.
func (m *idempotency[C]) serve(c C, next func(C) error) error {
	if m.skips(c) || !slices.Contains(m.settings.Methods, m.Request(c).Method) {
		return next(c)
	}
	x := &guardExchange[C]{exchange: newExchange(m.base, c, next), m: m, w: m.Writer(c), body: body{budget: &m.bodies, shares: &m.shares}}
	defer x.body.release()
	op, denial := x.operation()
	switch {
	case denial != nil:
		middleware.Fail(x.request.Context(), *denial)
		x.Deny(*denial)
	case op.Key == "", m.decider.Redirected(x.request.Context(), op, x.Mark()):
		x.handle(x.passed())
	default:
		m.decider.Serve(x.request.Context(), op, x)
		if x.capture != nil { // the answer is sent after it is recorded
			x.capture.send()
		}
	}
	return x.err
}

// guardExchange is a middleware.GuardedExchange.
type guardExchange[C any] struct {
	exchange[C]
	m       *idempotency[C]
	w       http.ResponseWriter
	body    body
	capture *Capture // of a handler that has run
}

func (x *guardExchange[C]) Run(ctx context.Context) middleware.Outcome {
	w := newCapture(x.w, middleware.NoteOf(ctx), x.m.maxResult)
	defer func() {
		if x.capture == nil { // the handler is panicking
			w.drop()
		}
	}()
	outside := x.runInto(w, withBody(ctx, x.request, &x.body))
	x.capture = w
	if w.large {
		x.m.decider.TooLarge(ctx, x.route())
	}
	outcome := middleware.Outcome{Ending: x.m.ending(x.request.Method, w.Status()), Status: w.Status()}
	switch {
	case w.refused():
		outcome.Ending = middleware.Refused
	case outside:
		outcome.Ending = middleware.Outside
		return outcome
	case w.Silent():
		outcome.Ending = middleware.Silent
	}
	if w.keeps() && !partial(outcome) && (!w.passing || !middleware.Over(ctx)) {
		outcome.Data = w.response().encode(x.m.fields)
	}
	return outcome
}

// route returns the pattern of the request's route, as far as the router tells.
func (x *guardExchange[C]) route() string {
	if routes, ok := x.Adapter.(RouteAdapter[C]); ok && x.current() {
		return routes.Path(x.c)
	}
	return x.request.Pattern
}

// runInto calls the handler, which answers into w. If the handler returns an error, runInto calls
// the application's error handler, which decides the answer; the framework does not call it again.
// The error of a context that has ended is no answer. runInto reports whether the answer is made
// outside of the capture.
func (x *guardExchange[C]) runInto(w *Capture, r *http.Request) (outside bool) {
	defer keepForm(x.request, r)
	before := x.left()
	captured, restore := x.Capture(x.c, w)
	defer func() { restore(x.current()) }()
	captured = x.WithRequest(captured, r)
	defer x.restoreRequest()
	if err := x.next(captured); err != nil && (w.Begun() || !middleware.GivesUp(r.Context(), err)) {
		begun := w.Begun()
		x.errors.Render(captured, err)
		if !begun { // this is the answer to the error, whatever its status
			middleware.NoteOf(r.Context()).Answered(w.Status(), err)
		}
	}
	checkStatus(w.status) // for a framework that only notes it
	w.end()
	return x.leaves(before, w.Size() > 0, w.Silent()) || x.bypassed()
}

// bypassed reports whether the context has lost the capture.
func (x *guardExchange[C]) bypassed() bool {
	return x.outside != nil && x.current() && !x.outside.Captures(x.c)
}

func (x *guardExchange[C]) Bypass() {
	x.Header(x.c).Set(statusHeader, "bypassed")
	x.handle(withBody(x.request.Context(), x.request, &x.body))
}

func (x *guardExchange[C]) Replay(result *guard.Result) error {
	kept, err := decodeResponse(result.Data)
	if err != nil {
		return err
	}
	if !validStatus(result.Status) {
		return errDamaged
	}
	x.End(x.c)
	x.body.release()
	kept.header = append(kept.header, change{name: replayedHeader, values: []string{"true"}})
	_ = kept.send(x.w, result.Status, true)
	return nil
}

func (x *guardExchange[C]) Deny(d policy.Denial) {
	x.body.release() // the client may take its time to read the denial
	x.exchange.Deny(d)
}

func (x *guardExchange[C]) GiveUp(d policy.Denial) {
	x.capture.drop()
	x.body.release()
	x.giveUp(x.w, d)
}

func (x *guardExchange[C]) Unconfirmed() {
	if x.m.settings.StatusHeaders {
		x.capture.set(statusHeader, "unconfirmed")
	}
}
