// Package outage holds the errors that every store shares with every mechanism.
// Package core re-exports them: users never import this package.
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
var ErrClosed = fmt.Errorf("%w: store is closed", ErrUnavailable)
