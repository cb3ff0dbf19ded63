// Package echohttp is the middleware for echo, but for what differs between its versions: the type of
// the context, and how a response is got at.
package echohttp

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Context is what the contexts of all versions have in common.
type Context interface {
	Request() *http.Request
	SetRequest(r *http.Request)
	Path() string
	Param(name string) string
	Get(key string) any
}

// Version is how middleware deals with the contexts of one version.
type Version[C Context] interface {
	// Response is what answers the request.
	Response(c C) http.ResponseWriter
	// Replace has w answer the request, and the version's own record of the answer begin anew, until
	// restore is called.
	Replace(c C, w http.ResponseWriter) (restore func())
	// Refuse returns the error with which the version's error handler answers as the denial says.
	Refuse(c C, e *Error) error
	// Status is that of the answer which the middleware has made, or which echo's own error handler
	// makes of the error that the middleware returns.
	Status(c C, err error) int
	// Render has the application's error handler answer with an error.
	Render(c C, err error)
	// StatusOf returns the status of an error of echo's own, 0 of another.
	StatusOf(err error) int
	// Log tells the application's log of an error.
	Log(c C, err error)
}

// base is what the middleware of every policy has: the version, and the functions in its types that
// the middleware was given.
type base[C Context] struct {
	Version[C]
	skip   func(C) bool
	deny   func(C, policy.Denial) error
	report func(C, error)
}

// newBase panics, as the New of the package called name, if a function was made for another
// framework.
func newBase[C Context](v Version[C], name string, s setting.Common) *base[C] {
	return &base[C]{
		Version: v,
		skip:    setting.Hook[func(C) bool](name, s.Skip),
		deny:    setting.Hook[func(C, policy.Denial) error](name, s.Deny),
		report:  setting.Hook[func(C, error)](name, s.Report),
	}
}

func (b *base[C]) skips(c C) bool { return b.skip != nil && b.skip(c) }

// refuse returns what the middleware returns for a denial.
func (b *base[C]) refuse(c C, d policy.Denial) error {
	note := httpdenial.Mark(c.Request().Context(), b.Response(c).Header())
	err := b.refusal(c, d)
	note.Refused(b.Status(c, err), err)
	return err
}

func (b *base[C]) refusal(c C, d policy.Denial) error {
	if b.deny == nil {
		return b.Refuse(c, newError(d))
	}
	if d.Err != nil && d.Status() >= http.StatusInternalServerError {
		b.tell(c, d.Err) // nobody else will: the hook's answer is no error
	}
	return b.deny(c, d)
}

// tell tells of an error that the middleware does not return.
func (b *base[C]) tell(c C, err error) {
	if b.report != nil {
		b.report(c, err)
		return
	}
	b.Log(c, err)
}

// exchange is a request and its answer in a middleware's hands.
//
// A time-out middleware outside may return while the handler still runs. Echo then gives the context to
// another request, so after the handler an exchange uses the context only while it is current. That leaves
// the moment between the look and the use, which only a middleware that waits for its chain can close.
type exchange[C Context] struct {
	*base[C]
	c       C
	request *http.Request // as it came
	key     func(C) (string, error)
	next    func(C) error
	err     error // what the middleware returns
}

func newExchange[C Context](b *base[C], c C, key func(C) (string, error), next func(C) error) *exchange[C] {
	return &exchange[C]{base: b, c: c, request: c.Request(), key: key, next: next}
}

// current reports whether echo's context is still this request's: the request's own context is not over.
func (x *exchange[C]) current() bool { return x.request.Context().Err() == nil }

// Key returns the request's key.
func (x *exchange[C]) Key() (string, error) { return x.key(x.c) }

// Run has the handler answer the request.
func (x *exchange[C]) Run(r *http.Request) {
	x.c.SetRequest(r)
	defer x.restoreRequest()
	x.err = x.next(x.c)
}

func (x *exchange[C]) restoreRequest() {
	if x.current() {
		x.c.SetRequest(x.request)
	}
}

// Deny ends the exchange with a denial.
func (x *exchange[C]) Deny(d policy.Denial) { x.err = x.refuse(x.c, d) }

// Report tells of an error that does not change the answer, unless the request's context is over.
func (x *exchange[C]) Report(err error) {
	if x.current() {
		x.tell(x.c, err)
	}
}
