package fence

import (
	"errors"
	"fmt"
	"sync"
)

var (
	// ErrStale is matched by the refusal of a token that is older than one the resource has seen:
	// somebody else has had the lock since. Nothing has been written, and to try again is no use.
	ErrStale = errors.New("fence: stale token")

	// ErrInvalid is matched by the refusal of a token that no lock has given: its number is not
	// positive. Nothing has been written, and the resource's mark is as it was.
	ErrInvalid = errors.New("fence: invalid token")

	// ErrInvalidKey is matched by the refusal of a key that a [Checker] has no place for. No mark has
	// been touched.
	ErrInvalidKey = errors.New("fence: invalid key")
)

// Mark is the largest number of an exclusive token that a resource has seen: 0 if it has seen none.
// It is the whole state of a fence, and Admit is its whole rule.
type Mark int64

// Admit decides about a token and returns the mark afterwards.
//
// An exclusive token passes if its number is not below the mark, so that one holder may write many
// times, and becomes the mark. A shared token passes if its number is not below the mark and leaves
// the mark alone: its number tells it from other shared ones, which stay as good as they were. An
// error matches [ErrStale] or [ErrInvalid], and leaves the mark alone.
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
// whose write failed, or panicked, has been seen all the same.
//
// An error that matches [ErrStale] or [ErrInvalid] says that write was not called, unless it is
// write's own.
func (g *Gate) Do(t Token, write func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.admit(t); err != nil {
		return err
	}
	return write()
}

// Check refuses a token as Do does, and writes nothing. By the time that the caller acts on it a
// newer token may have passed: use it where it saves work, and Do where it must hold.
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
