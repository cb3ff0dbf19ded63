// Package adapter adapts middleware to net/http.
package adapter

import (
	"cmp"
	"log/slog"
	"net/http"
	"reflect"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Context is a request, its response, and the handler behind the middleware.
type Context struct {
	W    http.ResponseWriter
	R    *http.Request
	next http.Handler
}

// handle serves every request: routers that build chains for each request pay for no closure.
func handle(c Context) error {
	c.next.ServeHTTP(c.W, c.R)
	return nil
}

// Handler returns a middleware in net/http's form. The returned function panics, as a result of the
// New of the package called name, if the handler is nil.
func Handler(name string, m httpmw.Middleware[Context]) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		if next == nil {
			panic(name + ": New: nil handler")
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = m(Context{w, r, next}, handle) })
	}
}

// timeoutHandler is the type of an http.TimeoutHandler.
var timeoutHandler = reflect.TypeOf(http.TimeoutHandler(nil, 0, ""))

// UntilItEnds is Handler for a middleware that acts when the handler has ended. An
// http.TimeoutHandler returns while its handler runs, so UntilItEnds logs it if the middleware is
// given one.
func UntilItEnds(name string, l *slog.Logger, m httpmw.Middleware[Context]) func(http.Handler) http.Handler {
	l = cmp.Or(l, slog.Default())
	wrap := Handler(name, m)
	return func(next http.Handler) http.Handler {
		if reflect.TypeOf(next) == timeoutHandler {
			l.Warn("lockkeeper: a TimeoutHandler stands inside, and returns while its handler runs; it belongs outside", "middleware", name)
		}
		return wrap(next)
	}
}

// Answer returns a handler in net/http's form.
func Answer(h func(Context) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = h(Context{W: w, R: r}) })
}

// Key returns a key function of net/http as a key function of contexts.
func Key(key func(*http.Request) (string, error)) func(Context) (string, error) {
	if key == nil {
		return nil
	}
	return func(c Context) (string, error) { return key(c.R) }
}

// NetHTTP is a httpmw.Adapter.
type NetHTTP struct{}

// Hooks implements httpmw.Adapter.
func (NetHTTP) Hooks(name string, s setting.Settings) (h httpmw.Hooks[Context]) {
	of := httpmw.HooksOf[*http.Request](name, s)
	if of.Skip != nil {
		h.Skip = func(c Context) bool { return of.Skip(c.R) }
	}
	if of.Report != nil {
		h.Report = func(c Context, err error) { of.Report(c.R, err) }
	}
	h.Key = Key(of.Key)
	if of.Costs != nil {
		h.Costs = func(c Context) tokenbucket.Cost { return of.Costs(c.R) }
	}
	if of.Tier != nil {
		h.Tier = func(c Context) policy.Tier { return of.Tier(c.R) }
	}
	if deny := setting.Hook[func(http.ResponseWriter, *http.Request, policy.Denial)](name, s.Deny); deny != nil {
		h.Deny = func(c Context, d policy.Denial) (int, error) {
			if middleware.NoteOf(c.R.Context()) == nil { // the status is of no interest
				deny(c.W, c.R, d)
				return 0, nil
			}
			w := &httpmw.Observer{ResponseWriter: c.W}
			deny(w, c.R, d)
			return w.Status(), nil
		}
	}
	return h
}

// Request implements httpmw.Adapter.
func (NetHTTP) Request(c Context) *http.Request { return c.R }

// WithRequest implements httpmw.Adapter.
func (NetHTTP) WithRequest(c Context, r *http.Request) Context {
	c.R = r
	return c
}

// Header implements httpmw.Adapter.
func (NetHTTP) Header(c Context) http.Header { return c.W.Header() }

// Writer implements httpmw.Adapter.
func (NetHTTP) Writer(c Context) http.ResponseWriter { return c.W }

// Capture implements httpmw.Adapter.
func (NetHTTP) Capture(c Context, w *httpmw.Capture) (captured Context, restore func(current bool)) {
	c.W = w
	return c, func(bool) {}
}

// Observe implements httpmw.Adapter.
func (NetHTTP) Observe(c Context, o *httpmw.Observer) (observed Context, restore func()) {
	o.ResponseWriter = c.W
	c.W = o
	return c, func() {}
}

// Current implements httpmw.Adapter: a context never belongs to another request.
func (NetHTTP) Current(Context, *http.Request) bool { return true }

// End implements httpmw.Adapter: a handler that is not called does not run.
func (NetHTTP) End(Context) bool { return true }

// Refuse implements httpmw.Adapter.
func (NetHTTP) Refuse(c Context, d policy.Denial) (status int, err error) {
	httpmw.WriteProblem(c.W, d)
	return d.Status(), nil
}

// Log implements httpmw.Adapter. It does nothing, since net/http has no place for errors.
func (NetHTTP) Log(Context, *telemetry.Repeated, error) {}
