package httpmw

import (
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Error is a denial that middleware returns to the application's error handler. It wraps the
// problem, and the error behind the denial if there is one. It has no MarshalJSON, so that logs use
// its text.
type Error struct {
	denial  policy.Denial
	problem *Problem
}

// NewError returns the error of a denial.
func NewError(d policy.Denial) *Error { return &Error{d, &Problem{denial: d}} }

// Error returns the reason, without the error behind the denial, since many applications show the
// text of errors to clients.
func (e *Error) Error() string { return "request denied: " + e.problem.Error() }

// Unwrap implements errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.denial.Err == nil {
		return []error{e.problem}
	}
	return []error{e.problem, e.denial.Err}
}

// Status returns the denial's status.
func (e *Error) Status() int { return e.denial.Status() }

// Problem returns the part that an error handler may show to clients.
func (e *Error) Problem() *Problem { return e.problem }

// Label sets the Content-Type of an answer whose body is the problem. It is called before the
// header is sent, since the error handler may choose another body.
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

// Problem is a denial's problem (RFC 9457), without the error behind it.
type Problem struct {
	denial policy.Denial
	// The problem may be marshalled on another goroutine.
	marshalled atomic.Bool
}

// Error implements error, with the reason. Echo v5 recognises the problem by it.
func (p *Problem) Error() string { return string(p.denial.Reason) }

// StatusCode implements the HTTPStatusCoder of echo v5.
func (p *Problem) StatusCode() int { return p.denial.Status() }

// MarshalJSON implements json.Marshaler.
func (p *Problem) MarshalJSON() ([]byte, error) {
	p.marshalled.Store(true)
	return p.denial.MarshalJSON()
}
