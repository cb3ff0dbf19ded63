package store

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// Cause is the cause of an ErrUnavailable, as telemetry and logs report it. The set is closed.
type Cause string

// The causes. OtherCause stands for all that have no name of their own.
const (
	ConnectionRefused Cause = "connection_refused"
	UnknownHost       Cause = "unknown_host"
	Timeout           Cause = "timeout"
	Full              Cause = "full"
	Overloaded        Cause = "overloaded"
	Authentication    Cause = "authentication"
	Permission        Cause = "permission"
	ReadOnly          Cause = "read_only"
	Eviction          Cause = "eviction"
	WrongServer       Cause = "wrong_server"
	Persistence       Cause = "persistence"      // the server cannot save its data, and takes no writes
	Replication       Cause = "replication"      // too few replicas are in step
	Starting          Cause = "starting"         // the server loads its data, or shuts down
	ServerBusy        Cause = "busy"             // another client's script does not end
	ClusterDown       Cause = "cluster_down"     // a part of the Cluster is missing or moving
	ConnectionLimit   Cause = "connection_limit" // the server takes no more connections
	OtherCause        Cause = "_OTHER"
)

// Causes are all causes.
var Causes = []Cause{
	ConnectionRefused, UnknownHost, Timeout, Full, Overloaded, Authentication, Permission, ReadOnly, Eviction,
	WrongServer, Persistence, Replication, Starting, ServerBusy, ClusterDown, ConnectionLimit, OtherCause,
}

// Misconfigured returns an error that matches ErrMisconfigured and err, with this cause.
func Misconfigured(cause Cause, err error) error {
	return &caused{cause, ErrMisconfigured.Error() + ": " + err.Error(), []error{ErrMisconfigured, err}}
}

// Outage returns an error that matches ErrUnavailable and err, with this cause.
func Outage(cause Cause, err error) error {
	return &caused{cause, ErrUnavailable.Error() + ": " + err.Error(), []error{ErrUnavailable, err}}
}

// Unavailable returns an error that matches ErrUnavailable, with this cause.
func Unavailable(cause Cause, reason string) error {
	return &caused{cause, ErrUnavailable.Error() + ": " + reason, []error{ErrUnavailable}}
}

// WithCauseOf returns an error with this text for a call that failed because an earlier one did. It
// has the cause of the earlier call's error. It matches ErrUnavailable, and ErrMisconfigured if the
// earlier error does, but nothing else, such as ErrUnconfirmed or a context's error.
func WithCauseOf(earlier error, text string) error {
	matches := ErrUnavailable
	if errors.Is(earlier, ErrMisconfigured) {
		matches = ErrMisconfigured
	}
	return &caused{CauseOf(earlier), text, []error{matches}}
}

// caused is an error whose cause is known.
type caused struct {
	cause   Cause
	text    string
	matches []error
}

func (e *caused) Error() string { return e.text }

func (e *caused) Unwrap() []error { return e.matches }

// CauseOf returns the cause of an error that matches ErrUnavailable.
func CauseOf(err error) Cause {
	var (
		known   *caused
		dns     *net.DNSError
		network net.Error
	)
	switch {
	case errors.As(err, &known):
		return known.cause
	case errors.Is(err, ErrFull):
		return Full
	case errors.Is(err, ErrOverloaded):
		return Overloaded
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
