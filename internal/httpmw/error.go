package httpmw

import (
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Error is a denial on its way to the application's error handler. It wraps the problem, and the error
// behind the denial if there is one. It does not marshal itself, so that a log which would marshal it
// says what it wraps instead.
type Error struct {
	denial  policy.Denial
	problem *Problem
}

// NewError returns the error of a denial.
func NewError(d policy.Denial) *Error { return &Error{d, &Problem{denial: d}} }

// Error says why the request was denied, and nothing of the error behind the denial: many applications
// show the text of an error to clients, or of one that wraps it.
func (e *Error) Error() string { return "request denied: " + e.problem.Error() }

// Unwrap implements errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.denial.Err == nil {
		return []error{e.problem}
	}
	return []error{e.problem, e.denial.Err}
}

// Status is the denial's.
func (e *Error) Status() int { return e.denial.Status() }

// Problem is what an error handler may show to clients.
func (e *Error) Problem() *Problem { return e.problem }

// Label has an answer whose body is the problem say so. It is called before the header is sent: what
// the body is to be, the error handler decides, and it may be something else.
func (e *Error) Label(h http.Header) {
	if e.problem.marshalled.Load() {
		h.Set("Content-Type", ContentType)
	}
}

// DenialOf returns the denial behind an error.
func DenialOf(err error) (policy.Denial, bool) {
	var e *Error
	if errors.As(err, &e) {
		return e.denial, true
	}
	return policy.Denial{}, false
}

// Problem is a denial's problem (RFC 9457). It tells nothing of the error behind it.
type Problem struct {
	denial policy.Denial
	// Whoever marshals the problem may do so on another goroutine, so this is all that it changes.
	marshalled atomic.Bool
}

// Error implements error, with which echo v5 knows the problem, with the reason.
func (p *Problem) Error() string { return string(p.denial.Reason) }

// StatusCode implements the HTTPStatusCoder of echo v5.
func (p *Problem) StatusCode() int { return p.denial.Status() }

// MarshalJSON implements json.Marshaler.
func (p *Problem) MarshalJSON() ([]byte, error) {
	p.marshalled.Store(true)
	return p.denial.MarshalJSON()
}
