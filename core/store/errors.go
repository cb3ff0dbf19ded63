package store

import (
	"errors"
	"fmt"
)

var (
	// ErrUnavailable is matched by every error of a store that gave no answer: it was not reached in
	// time, refused, broke the connection, or answered with an error of its own. If ErrUnconfirmed
	// does not match too, nothing has been changed.
	ErrUnavailable = errors.New("lockkeeper: store unavailable")

	// ErrUnconfirmed is matched by an ErrUnavailable of a request that was sent, and may or may not
	// have been carried out.
	ErrUnconfirmed = fmt.Errorf("%w: the request was sent but its outcome is not known", ErrUnavailable)

	// ErrFull is matched by an ErrUnavailable of a store that has no room for anything new. It still
	// answers requests about existing entries, so it is not an outage: no policy that lets requests
	// pass applies.
	ErrFull = fmt.Errorf("%w: store is full", ErrUnavailable)

	// ErrOverloaded is matched by an ErrUnavailable of a call that reached a bound of the client while
	// the server replied to others: there was no free connection, no room in a queue, or no lock or
	// reply in time. If ErrUnconfirmed does not match too, nothing has been changed. It is not an
	// outage: no policy that lets requests pass applies.
	ErrOverloaded = fmt.Errorf("%w: store is overloaded", ErrUnavailable)

	// ErrClosed is matched by an ErrUnavailable of a store, or a mechanism, that was closed or shut
	// down. It is not an outage: no policy that lets requests pass applies.
	ErrClosed = fmt.Errorf("%w: closed", ErrUnavailable)

	// ErrMisconfigured is matched by an ErrUnavailable that waiting does not end: the store's server
	// refused the password or lacks a permission, has been read-only from the start, is set to evict
	// data, or is of the wrong type. It is not an outage: policy.FailOpen and policy.RunUnprotected do
	// not apply unless they are given policy.EvenMisconfigured.
	ErrMisconfigured = fmt.Errorf("%w: store is misconfigured", ErrUnavailable)

	// ErrNotSupported is matched by the error of a step that the store cannot do, such as a shared
	// lock on a quorum. It also matches errors.ErrUnsupported.
	ErrNotSupported = fmt.Errorf("lockkeeper: %w by this store", errors.ErrUnsupported)

	// ErrWithdrawn is returned by AwaitLease for a request that was released.
	ErrWithdrawn = errors.New("lockkeeper: the request was withdrawn, since its ID was released")

	// ErrManySlots is matched by the error of a decision about the buckets of several keys that
	// this store does not keep in one place, as Redis Cluster may not. It also matches
	// errors.ErrUnsupported.
	ErrManySlots = fmt.Errorf("lockkeeper: %w: the keys of one decision are kept in several places", errors.ErrUnsupported)
)

// Down reports whether an error is an outage: one that may end by itself, and to which a policy
// that lets requests pass may apply. A full store, an overloaded one, a misconfigured one and a
// closed one are not down.
func Down(err error) bool {
	if !errors.Is(err, ErrUnavailable) {
		return false
	}
	for _, other := range []error{ErrFull, ErrOverloaded, ErrMisconfigured, ErrClosed} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}
