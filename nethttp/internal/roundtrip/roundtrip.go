// Package roundtrip has the common parts of the RoundTrippers of this module.
package roundtrip

import (
	"context"
	"errors"
	"net/http"
)

// ErrNotSent is matched by a [NotSent].
var ErrNotSent = errors.New("ratelimit: the request was not sent")

// NotSent is the error of a request that a RoundTripper has not sent.
type NotSent struct {
	Err error
	// Final means that the same request would not be sent the next time either.
	Final bool
}

func (e *NotSent) Error() string { return ErrNotSent.Error() + ": " + e.Err.Error() }

func (e *NotSent) Unwrap() []error { return []error{ErrNotSent, e.Err} }

// Timeout reports whether a deadline was the reason. url.Error calls it.
func (e *NotSent) Timeout() bool { return errors.Is(e.Err, context.DeadlineExceeded) }

// Final reports whether an error is of a request that would not be sent the next time either.
func Final(err error) bool {
	var e *NotSent
	return errors.As(err, &e) && e.Final
}

// CloseBody closes the body of a request that is not sent.
func CloseBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
}

// CloseIdle closes the idle connections of a RoundTripper that has some.
func CloseIdle(base http.RoundTripper) {
	if closer, ok := base.(interface{ CloseIdleConnections() }); ok {
		closer.CloseIdleConnections()
	}
}
