// Package httphold is the exclusive and the concurrency middleware of every HTTP framework, but for
// the framework.
package httphold

import (
	"context"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/httprequest"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Middleware has requests hold a lock, or a permit, while their handlers run.
type Middleware struct {
	hold   *middleware.Hold
	status string // the header field of an answer that ran without
	types  string // of problems
	bodies bodies
}

// Exclusive returns the middleware for a locker that is not nil.
func Exclusive(l *lock.Locker, s setting.Exclusive) *Middleware {
	return &Middleware{hold: middleware.NewExclusive(l, s), status: "Lock-Status", types: s.ProblemTypes}
}

// Concurrency returns the middleware for a semaphore that is not nil. The error is that of the
// semaphore's With.
func Concurrency(s *semaphore.Semaphore, set setting.Concurrency) (*Middleware, error) {
	hold, err := middleware.NewConcurrency(s, set)
	return &Middleware{hold: hold, status: "Concurrency-Status", types: set.ProblemTypes}, err
}

// Exchange is a request and its answer in a framework's hands.
type Exchange interface {
	// Key returns the request's key.
	Key() (string, error)
	// Run has the handler answer the request.
	Run(r *http.Request)
	// Deny ends the exchange with a denial.
	Deny(policy.Denial)
	// Report tells of an error that does not change the answer.
	Report(error)
}

// Serve answers a request, whose response has the header h: it runs it when it holds what it needs,
// or denies it.
func (m *Middleware) Serve(h http.Header, r *http.Request, x Exchange) {
	e := &exchange{Exchange: x, m: m, h: h, r: r}
	defer func() { m.bodies.taken.Add(-e.early) }()
	m.hold.Serve(r.Context(), e)
}

// exchange is a middleware.Exchange in HTTP.
type exchange struct {
	Exchange
	m *Middleware
	h http.Header
	r *http.Request

	early int64 // the bytes of the body that were read before the request waited
	mark  middleware.Mark
}

func (x *exchange) Mark() *middleware.Mark {
	x.mark.ID = httprequest.ID(x.r)
	return &x.mark
}

func (x *exchange) Waits() { x.early = x.m.bodies.read(x.r) }

func (x *exchange) Run(ctx context.Context) {
	handled := x.r.WithContext(ctx)
	x.Exchange.Run(handled)
	httprequest.KeepForm(x.r, handled)
}

func (x *exchange) Bypass() {
	x.h.Set(x.m.status, "bypassed")
	x.Exchange.Run(x.r)
}

func (x *exchange) Deny(d policy.Denial) {
	httpdenial.SetHeader(x.h, &d, x.m.types)
	x.Exchange.Deny(d)
}
