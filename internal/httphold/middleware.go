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
}

// Exclusive returns the middleware for a locker that is not nil.
func Exclusive(l *lock.Locker, s setting.Exclusive) *Middleware {
	return &Middleware{middleware.NewExclusive(l, s), "Lock-Status"}
}

// Concurrency returns the middleware for a semaphore that is not nil. The error is that of the
// semaphore's With.
func Concurrency(s *semaphore.Semaphore, set setting.Concurrency) (*Middleware, error) {
	hold, err := middleware.NewConcurrency(s, set)
	return &Middleware{hold, "Concurrency-Status"}, err
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
	m.hold.Serve(r.Context(), &exchange{x, m, h, r})
}

// exchange is a middleware.Exchange in HTTP.
type exchange struct {
	Exchange
	m *Middleware
	h http.Header
	r *http.Request
}

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
	httpdenial.SetHeader(x.h, d)
	x.Exchange.Deny(d)
}
