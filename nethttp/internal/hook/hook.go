// Package hook applies, in net/http, what every policy can be told in net/http's types.
package hook

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Hooks are the functions in net/http's types that a middleware was given.
type Hooks struct {
	name   string // of the middleware's package
	skip   func(*http.Request) bool
	deny   func(http.ResponseWriter, *http.Request, policy.Denial)
	report func(*http.Request, error)
}

// Of returns the hooks among a middleware's settings. It panics if one of them was made for another
// framework.
func Of(name string, s setting.Common) *Hooks {
	return &Hooks{
		name:   name,
		skip:   setting.Hook[func(*http.Request) bool](name, s.Skip),
		deny:   setting.Hook[func(http.ResponseWriter, *http.Request, policy.Denial)](name, s.Deny),
		report: setting.Hook[func(*http.Request, error)](name, s.Report),
	}
}

// Middleware returns middleware that has serve answer the requests which it does not leave alone.
func (h *Hooks) Middleware(serve func(Exchange)) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic(h.name + ": New: nil handler")
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if h.skip != nil && h.skip(r) {
				next.ServeHTTP(w, r)
				return
			}
			serve(Exchange{h, next, w, r})
		})
	}
}

// Exchange is a request and its answer in a middleware's hands.
type Exchange struct {
	hooks   *Hooks
	Next    http.Handler
	Writer  http.ResponseWriter
	Request *http.Request // as it came
}

// Run has the handler answer the request.
func (x *Exchange) Run(r *http.Request) { x.Next.ServeHTTP(x.Writer, r) }

// Deny answers with a denial. A failure of the store, or of a key function, is reported; a mere
// denial is not.
func (x *Exchange) Deny(d policy.Denial) {
	if d.Err != nil && d.Status() >= 500 {
		x.Report(d.Err)
	}
	note := httpdenial.Mark(x.Request.Context(), x.Writer.Header())
	if x.hooks.deny == nil {
		note.Refused(d.Status(), nil)
		httpdenial.Write(x.Writer, d)
		return
	}
	if note == nil {
		x.hooks.deny(x.Writer, x.Request, d)
		return
	}
	w := &observer{ResponseWriter: x.Writer, status: http.StatusOK}
	x.hooks.deny(w, x.Request, d)
	note.Refused(w.status, nil)
}

// Report tells of an error that the client is not told of.
func (x *Exchange) Report(err error) {
	if x.hooks.report != nil {
		x.hooks.report(x.Request, err)
	}
}

// observer is the ResponseWriter of a Deny hook behind a guard. It notes the status.
type observer struct {
	http.ResponseWriter
	status int
	begun  bool
}

func (o *observer) WriteHeader(status int) {
	if !o.begun && status >= http.StatusOK {
		o.status, o.begun = status, true
	}
	o.ResponseWriter.WriteHeader(status)
}

func (o *observer) Write(p []byte) (int, error) {
	o.begun = true
	return o.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which the writer of a guard's handler does.
func (o *observer) Flush() {
	o.begun = true
	_ = http.NewResponseController(o.ResponseWriter).Flush()
}

func (o *observer) Unwrap() http.ResponseWriter { return o.ResponseWriter }
