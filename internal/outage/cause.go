package outage

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// Cause is why a store was unavailable, as telemetry and logs say it. The set is closed.
type Cause string

// The causes. The last is for what has no name of its own.
const (
	ConnectionRefused Cause = "connection_refused"
	UnknownHost       Cause = "unknown_host"
	Timeout           Cause = "timeout"
	Full              Cause = "full"
	Authentication    Cause = "authentication"
	Permission        Cause = "permission"
	ReadOnly          Cause = "read_only"
	Eviction          Cause = "eviction"
	WrongServer       Cause = "wrong_server"
	OtherCause        Cause = "_OTHER"
)

// Causes are all causes.
var Causes = []Cause{
	ConnectionRefused, UnknownHost, Timeout, Full, Authentication, Permission, ReadOnly, Eviction,
	WrongServer, OtherCause,
}

// misconfigured is an ErrMisconfigured with its cause.
type misconfigured struct {
	cause Cause
	err   error
}

// Misconfigured returns an error that matches ErrMisconfigured and err.
func Misconfigured(cause Cause, err error) error { return &misconfigured{cause, err} }

func (e *misconfigured) Error() string { return ErrMisconfigured.Error() + ": " + e.err.Error() }

func (e *misconfigured) Unwrap() []error { return []error{ErrMisconfigured, e.err} }

// quote is an error that says what another one said, and matches nothing that it matched but
// ErrMisconfigured: it is about a call that is over.
type quote struct {
	cause Cause
	text  string
	what  error
}

// Quote returns an error with the cause of an earlier call's error and a text, which matches
// ErrUnavailable, and ErrMisconfigured if that did. It does not match what else that one did, such as
// ErrUnconfirmed or a context's error.
func Quote(err error, text string) error {
	what := ErrUnavailable
	if errors.Is(err, ErrMisconfigured) {
		what = ErrMisconfigured
	}
	return &quote{CauseOf(err), text, what}
}

// Because returns an error that matches ErrUnavailable, with this cause.
func Because(cause Cause, text string) error {
	return &quote{cause, ErrUnavailable.Error() + ": " + text, ErrUnavailable}
}

func (e *quote) Error() string { return e.text }

func (e *quote) Unwrap() error { return e.what }

// CauseOf returns the cause of an error that matches ErrUnavailable.
func CauseOf(err error) Cause {
	var (
		quoted  *quote
		setting *misconfigured
		dns     *net.DNSError
		network net.Error
	)
	switch {
	case errors.As(err, &quoted):
		return quoted.cause
	case errors.As(err, &setting):
		return setting.cause
	case errors.Is(err, ErrFull):
		return Full
	case errors.Is(err, syscall.ECONNREFUSED):
		return ConnectionRefused
	case errors.As(err, &dns) && !dns.IsTimeout:
		return UnknownHost
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &network) && network.Timeout():
		return Timeout
	}
	return OtherCause
}
