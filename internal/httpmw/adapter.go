// Package httpmw is the HTTP middleware of all frameworks, generic over the type C of the contexts
// in which a framework passes requests to its middleware. An [Adapter] holds the differences
// between frameworks.
package httpmw

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Middleware answers the request of c, or calls next. It returns the error of next or, in a
// framework whose handlers return errors, of a refusal.
type Middleware[C any] func(c C, next func(C) error) error

// Adapter adapts middleware to one framework.
type Adapter[C any] interface {
	// Hooks returns the functions in the framework's types among a middleware's settings. It
	// panics, as the New of the package called name, if one of them was made for another framework.
	Hooks(name string, s setting.Settings) Hooks[C]
	// Request returns the request.
	Request(c C) *http.Request
	// WithRequest returns the context with another request. In most frameworks it is the same context.
	WithRequest(c C, r *http.Request) C
	// Header returns the header of the response.
	Header(c C) http.Header
	// Writer returns the writer of the response. It sends informational responses at once.
	Writer(c C) http.ResponseWriter
	// Capture returns the context with a capture in place of the response's writer, until restore is
	// called. The context may then belong to another request: see Current.
	Capture(c C, w *Capture) (captured C, restore func(current bool))
	// Observe returns the context with an observer of the answer in front of the response's writer,
	// until restore is called.
	Observe(c C, o *Observer) (observed C, restore func())
	// Current reports whether the context still belongs to request r.
	Current(c C, r *http.Request) bool
	// End prevents the handler from running. It returns false if other middleware has done so, and has
	// answered the request.
	End(c C) bool
	// Refuse answers with a denial. It returns the status of the answer, and the error for the
	// middleware to return.
	Refuse(c C, d policy.Denial) (status int, err error)
	// Log logs an error that the middleware does not return, in the framework's place for errors, or
	// else in the middleware's own log.
	Log(c C, own *telemetry.Repeated, err error)
}

// OutsideAdapter is an Adapter of a framework in which a handler can leave its answer to middleware
// outside: as an error, or as a value that such middleware renders.
type OutsideAdapter[C any] interface {
	// Left returns how many errors, and how many values, handlers have left so far.
	Left(c C) (errors, values int)
	// Captures reports whether the context still has the writer of Capture.
	Captures(c C) bool
}

// ErrorAdapter is an Adapter of a framework whose handlers return errors. The application's error
// handler answers with them, refusals included unless Denied returns nil.
type ErrorAdapter[C any] interface {
	Adapter[C]
	// Render calls the application's error handler.
	Render(c C, err error)
	// Renders reports whether the application's error handler decides the status of an error. If not,
	// middleware outside may.
	Renders(c C, err error) bool
	// Denied returns a denial as an error, or nil in a framework whose refusals are no errors. Unlike
	// Refuse it does not use a context.
	Denied(d policy.Denial) error
	// StatusOf returns the status of an error of the framework, and 0 for another error.
	StatusOf(err error) int
}

// Hooks are the functions in a framework's types among a middleware's settings. A missing one is
// nil.
type Hooks[C any] struct {
	Skip func(C) bool
	// Deny answers with a denial, as Adapter's Refuse does.
	Deny   func(C, policy.Denial) (status int, err error)
	Report func(C, error)
	Key    func(C) (string, error)
	Costs  func(C) tokenbucket.Cost
	Tier   func(C) policy.Tier
}

// base is the common part of the middleware of all policies.
type base[C any] struct {
	Adapter[C]
	hooks   Hooks[C]
	errors  ErrorAdapter[C]   // nil if the framework's handlers return no errors
	outside OutsideAdapter[C] // nil if the framework's handlers leave no answer to middleware outside
	values  valuer[C]         // nil if the framework's contexts have no values of their own
	types   string            // of problems
	reports *telemetry.Repeated
	lender  lender // of bodies, to the functions among the hooks
}

func newBase[C any](a Adapter[C], name string, s setting.Settings) *base[C] {
	rendering, _ := a.(ErrorAdapter[C])
	outside, _ := a.(OutsideAdapter[C])
	values, _ := a.(valuer[C])
	return &base[C]{
		Adapter: a, hooks: a.Hooks(name, s), errors: rendering, outside: outside, values: values, types: s.ProblemTypes,
		reports: newReports(name, s.Logger),
		lender:  lender{max: s.MaxBody, bodies: budget{max: cmp.Or(s.MaxBodies, max(defaultMaxBodies, s.MaxBody))}},
	}
}

func newReports(name string, l *slog.Logger) *telemetry.Repeated {
	return telemetry.NewRepeated(cmp.Or(l, slog.Default()).With("middleware", name), "lockkeeper: errors behind answers, which OnError would get")
}

func (b *base[C]) skips(c C) bool {
	if b.hooks.Skip == nil {
		return false
	}
	defer b.lend(c).back()
	return b.hooks.Skip(c)
}

// keyOf returns the key of a request by one of the middleware's functions.
func (b *base[C]) keyOf(c C, key func(C) (string, error)) (string, error) {
	defer b.lend(c).back()
	return key(c)
}

// refuse answers with a denial, and returns the error for the middleware to return. It marks the
// answer for guards outside: nothing was done.
func (b *base[C]) refuse(c C, d policy.Denial) error { return b.deny(c, d, mark) }

// deny is refuse with another function mark.
func (b *base[C]) deny(c C, d policy.Denial, mark func(context.Context, http.Header) *middleware.Note) error {
	if unread := (bodyError{}); errors.As(d.Err, &unread) {
		d = b.unreadable(c, unread.error)
	}
	if l := lentOf(b.Request(c)); l != nil {
		l.release()
		l.restore()
	}
	header := b.Header(c)
	setHeader(header, &d, b.types)
	if !b.End(c) {
		return nil
	}
	// If refusals are errors, the error handler gets the error behind the denial.
	returned := b.errors != nil && b.hooks.Deny == nil && b.errors.Denied(d) != nil
	if middleware.IsFailure(d) && !returned {
		b.report(c, d.Err)
	}
	note := mark(b.Request(c).Context(), header)
	var (
		status int
		err    error
	)
	if b.hooks.Deny != nil {
		status, err = b.hooks.Deny(c, d)
	} else {
		status, err = b.Refuse(c, d)
	}
	note.Refused(status, err)
	return err
}

// report reports an error that the middleware does not return.
func (b *base[C]) report(c C, err error) {
	if b.hooks.Report != nil {
		b.hooks.Report(c, err)
		return
	}
	b.Log(c, b.reports, err)
}
