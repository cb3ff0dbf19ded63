package httpmw

import (
	"context"
	"errors"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// exchange is a request and its answer in a middleware.
//
// A timeout middleware outside may return while the handler still runs. Some frameworks then reuse
// the context for another request, so after the handler an exchange uses the context only while it
// is current. A race between the check and the use remains; only middleware that waits for its
// chain can close it.
type exchange[C any] struct {
	*base[C]
	c       C
	request *http.Request // as it arrived
	next    func(C) error
	err     error // for the middleware to return
	mark    middleware.Mark
}

func newExchange[C any](b *base[C], c C, next func(C) error) exchange[C] {
	return exchange[C]{base: b, c: c, request: b.Request(c), next: next}
}

func (x *exchange[C]) current() bool { return x.Current(x.c, x.request) }

// Mark returns the exchange's mark, with the request's ID.
func (x *exchange[C]) Mark() *middleware.Mark {
	x.mark.ID = requestID(x.request)
	if x.outside != nil {
		x.mark.Chain = x.c
	}
	return &x.mark
}

// handle calls the handler with a copy of the request.
func (x *exchange[C]) handle(r *http.Request) {
	defer keepForm(x.request, r)
	defer x.restoreRequest()
	x.err = x.next(x.WithRequest(x.c, r))
}

// observing calls f while an observer is in front of the response's writer.
func (x *exchange[C]) observing(o *Observer, f func()) {
	observed, restore := x.Observe(x.c, o)
	c := x.c
	x.c = observed
	defer func() {
		if x.current() {
			restore()
		}
		x.c = c
	}()
	f()
}

// left counts what handlers have left so far for middleware outside to render.
type left struct{ errors, values int }

func (x *exchange[C]) left() (l left) {
	if x.outside != nil && x.current() {
		l.errors, l.values = x.outside.Left(x.c)
	}
	return l
}

// leaves reports whether a handler has left its answer to middleware outside, which may still
// change it: there are more errors than before, or, if the handler has not even set a status, more
// values.
func (x *exchange[C]) leaves(before left, final, silent bool) bool {
	now := x.left()
	return !final && (now.errors > before.errors || silent && now.values > before.values)
}

func (x *exchange[C]) restoreRequest() {
	if x.current() {
		x.WithRequest(x.c, x.request)
	}
}

// Deny answers with a denial.
func (x *exchange[C]) Deny(d policy.Denial) { x.err = x.refuse(x.c, d) }

// giveUp answers for a handler that has not answered, and whose work may have been done. w is the
// middleware's own writer.
func (x *exchange[C]) giveUp(w http.ResponseWriter, d policy.Denial) {
	switch {
	case x.current():
		x.err = x.deny(x.c, d, func(context.Context, http.Header) *middleware.Note { return nil })
	case x.errors != nil:
		x.err = x.errors.Denied(d)
	case errors.Is(x.request.Context().Err(), context.Canceled): // the writer may belong to another request, too
	default:
		setHeader(w.Header(), &d, x.types)
		WriteProblem(w, d)
	}
}

// Report reports an error that does not change the answer. It does nothing if the context belongs
// to another request by now.
func (x *exchange[C]) Report(err error) {
	if x.current() {
		x.report(x.c, err)
	}
}
