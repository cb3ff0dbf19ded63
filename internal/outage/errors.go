// Package outage holds the errors that every store shares with every mechanism, and says what each of
// them means for an outage policy. Package core re-exports the errors: users never import this package.
package outage

import (
	"errors"
	"fmt"
)

// ErrUnavailable is documented as core.ErrUnavailable.
var ErrUnavailable = errors.New("lockkeeper: store unavailable")

// ErrUnconfirmed is documented as core.ErrUnconfirmed.
var ErrUnconfirmed = fmt.Errorf("%w: the request was sent but its outcome is not known", ErrUnavailable)

// ErrFull is documented as core.ErrFull.
var ErrFull = fmt.Errorf("%w: store is full", ErrUnavailable)

// ErrClosed is documented as core.ErrClosed.
var ErrClosed = fmt.Errorf("%w: closed", ErrUnavailable)

// ErrMisconfigured is documented as core.ErrMisconfigured.
var ErrMisconfigured = fmt.Errorf("%w: store is misconfigured", ErrUnavailable)

// Down reports whether an error is an outage: one that time may end, and in which a policy that lets
// requests pass may apply. A full store, a misconfigured one and a closed one are not down: the first
// answers about what it has, the second stays as it is until somebody mends it, and the third for good.
func Down(err error) bool {
	return errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrFull) && !errors.Is(err, ErrMisconfigured) &&
		!errors.Is(err, ErrClosed)
}
