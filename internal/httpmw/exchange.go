package httpmw

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// exchange is a request and its answer in a middleware's hands.
//
// A timeout middleware outside may return while the handler still runs. Some frameworks then reuse
// the context for another request, so after the handler an exchange uses the context only while it
// is current. Between the check and the use there is a moment that only a middleware which waits
// for its chain can close.
type exchange[C any] struct {
	*base[C]
	c       C
	request *http.Request // as it came
	next    func(C) error
	err     error // what the middleware returns
	mark    middleware.Mark
}

func newExchange[C any](b *base[C], c C, next func(C) error) exchange[C] {
	return exchange[C]{base: b, c: c, request: b.Request(c), next: next}
}

func (x *exchange[C]) current() bool { return x.Current(x.c, x.request) }

// Mark returns the exchange's mark, with the request's ID.
func (x *exchange[C]) Mark() *middleware.Mark {
	x.mark.ID = requestID(x.request)
	return &x.mark
}

// handle calls the handler with a copy of the request.
func (x *exchange[C]) handle(r *http.Request) {
	defer keepForm(x.request, r)
	defer x.restoreRequest()
	x.err = x.next(x.WithRequest(x.c, r))
}

func (x *exchange[C]) restoreRequest() {
	if x.current() {
		x.WithRequest(x.c, x.request)
	}
}

// Deny answers with a denial.
func (x *exchange[C]) Deny(d policy.Denial) { x.err = x.refuse(x.c, d) }

// Report reports an error that does not change the answer, unless the context is another request's
// by now.
func (x *exchange[C]) Report(err error) {
	if x.current() {
		x.report(x.c, err)
	}
}
