// Package httpfence is the fenced middleware of every HTTP framework, but for the framework.
package httpfence

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/httphold"
	"github.com/lockkeeper/lockkeeper/internal/httprequest"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Middleware refuses the requests of holders that have lost their lock.
type Middleware struct {
	fence *middleware.Fence
	types string // of problems
}

// New returns the middleware. It panics, as the New of package fenced, if the checker is nil.
func New(c fence.Checker, s setting.Fenced) *Middleware {
	return &Middleware{middleware.NewFence(c, s), s.ProblemTypes}
}

// Serve answers a request, whose response has the header h: it runs it, or denies it.
func (m *Middleware) Serve(h http.Header, r *http.Request, x httphold.Exchange) {
	passage, denial := m.fence.Check(r.Context(), r.Header[fence.Header], x.Key)
	if denial != nil {
		httpdenial.SetHeader(h, denial, m.types)
		x.Deny(*denial)
		return
	}
	if passage.Bypassed != nil {
		x.Report(passage.Bypassed)
		h.Set("Fence-Status", "bypassed")
	}
	handled := r.WithContext(passage.Context)
	x.Run(handled)
	httprequest.KeepForm(r, handled)
}
