package httpmw

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// settling is a request that asks a rate limit for more than a token.
type settling[C any] struct {
	exchange[C]
	m      *rateLimit[C]
	ask    middleware.Ask
	shadow bool // policy.Shadow, or the limiter's
}

// serveAsking serves a request that asks for more than a token.
func (m *rateLimit[C]) serveAsking(c C, next func(C) error, key string, keyErr error) error {
	x := &settling[C]{exchange: newExchange(m.base, c, next), m: m}
	x.ask = middleware.Ask{Settles: m.settles, Report: x.Report}
	if m.hooks.Costs != nil {
		x.ask.Costs = func() tokenbucket.Cost {
			defer m.lend(c).back()
			return m.hooks.Costs(c)
		}
	}
	ctx := newPlanContext(m.base, c)
	var decision tokenbucket.Decision
	denial, verdict := m.decider.Check(ctx, key, keyErr, &x.ask, &decision)
	ctx.end()
	x.shadow = m.shadow || !decision.Enforced()
	switch denial = m.outcome(c, denial, verdict, &decision, &ctx.fields); {
	case denial != nil:
		return m.refuse(c, *denial)
	case !x.ask.Reserved():
		return next(c)
	}
	x.run()
	return x.err
}

// Report reports an error that does not change the answer. An error of a shadow goes to OnError
// alone, since frameworks may answer with the errors that they record.
func (x *settling[C]) Report(err error) {
	switch {
	case !x.shadow:
		x.exchange.Report(err)
	case x.hooks.Report != nil && x.current():
		x.hooks.Report(x.c, err)
	}
}

// run calls the handler, and settles its use, even if it panics.
func (x *settling[C]) run() {
	charged := true
	defer func() { x.ask.Settle(x.request.Context(), charged) }()
	r := x.request
	if x.ask.Costs != nil {
		r = r.WithContext(x.ask.Context(r.Context()))
	}
	if x.m.charged == nil {
		x.handle(r)
		return
	}
	status := x.observe(r)
	charged = status == 0 || x.m.charged[status]
}

// observe calls the handler and returns the status of its answer, or zero if that is not known. If
// the handler returns an error, observe calls the application's error handler, which decides the
// answer; the framework does not call it again.
func (x *settling[C]) observe(r *http.Request) int {
	var (
		o     Observer
		known bool
	)
	x.observing(&o, func() { known = x.answer(r, &o) })
	if !known {
		return 0
	}
	return o.Status()
}

// answer calls the handler, and reports whether the status of its answer is known.
func (x *settling[C]) answer(r *http.Request, o *Observer) bool {
	before := x.left()
	x.handle(r)
	switch {
	case x.request.Context().Err() != nil: // the context may be another request's, and the client gets no answer
		return false
	case x.err != nil && !o.Begun() && !x.errors.Renders(x.c, x.err):
		x.m.decider.AnsweredOutside(r.Context())
		return false
	case x.err != nil && !o.Begun():
		err := x.err
		x.errors.Render(x.c, err)
		middleware.NoteOf(r.Context()).Answered(o.Status(), err)
		x.err = nil
	case x.leaves(before, o.Begun(), o.Silent()):
		x.m.decider.AnsweredOutside(r.Context())
		return false
	}
	return true
}
