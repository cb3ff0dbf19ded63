package fence

import (
	"errors"
	"fmt"
	"sync"
)

var (
	// ErrStale is matched by the refusal of a token that is older than one the resource has seen:
	// another holder has had the lock since. Nothing was written, and retrying does not help.
	ErrStale = errors.New("fence: stale token")

	// ErrInvalid is matched by the refusal of a token that no lock has granted: its number is not
	// positive. Nothing was written, and the resource's mark is unchanged.
	ErrInvalid = errors.New("fence: invalid token")

	// ErrInvalidKey is matched by the refusal of a key that a [Checker] does not accept. No mark
	// was changed.
	ErrInvalidKey = errors.New("fence: invalid key")
)

// Mark is the largest number of an exclusive token that a resource has seen: 0 if it has seen none.
// It is the whole state of a fence, and Admit is its whole rule.
type Mark int64

// Admit decides about a token and returns the mark afterwards.
//
// An exclusive token passes if its number is not below the mark, so that one holder may write many
// times, and becomes the mark. A shared token passes if its number is not below the mark and does
// not change the mark: its number only identifies it among other shared ones, which stay valid.
// With an error, which matches [ErrStale] or [ErrInvalid], the mark does not change.
func (m Mark) Admit(t Token) (Mark, error) {
	switch {
	case t.Number <= 0:
		return m, fmt.Errorf("%w: number %d", ErrInvalid, t.Number)
	case t.Number < int64(m):
		return m, fmt.Errorf("%w: number %d, and the resource has seen %d", ErrStale, t.Number, int64(m))
	case t.Shared:
		return m, nil
	}
	return Mark(t.Number), nil
}

// Gate keeps the mark of a resource that lives in one process, such as a file or a device that only
// this process writes to. The zero value has seen no token. All methods may be called concurrently.
type Gate struct {
	mu   sync.Mutex
	mark Mark
}

// Do calls write if the token passes, and returns its error. No other call of the gate passes until
// write has returned, so that a newer token cannot come between the check and the write. A token
// whose write failed, or panicked, counts as seen.
//
// If the error matches [ErrStale] or [ErrInvalid], write was not called, unless it returned that
// error.
func (g *Gate) Do(t Token, write func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.admit(t); err != nil {
		return err
	}
	return write()
}

// Check refuses a token as Do does, without a write. A newer token may have passed when the caller
// acts on it: use Check to save work, and Do to exclude.
func (g *Gate) Check(t Token) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admit(t)
}

// Mark returns the mark.
func (g *Gate) Mark() Mark {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mark
}

func (g *Gate) admit(t Token) (err error) {
	g.mark, err = g.mark.Admit(t)
	return err
}
