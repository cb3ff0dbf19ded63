package middleware

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"sync/atomic"
)

// Note records the refusals of middleware behind a guard. A refusal alone does not decide about the
// guard's own answer: contexts are given to parts of a request, and outlive it. The answer is a
// refusal only if it carries a proof: in HTTP a header field with the note's mark, in an RPC the
// error itself.
type Note struct {
	outer *Note

	mu     sync.Mutex // guards the mark, and the latest refusal
	mark   string
	status int
	err    error

	ended atomic.Bool
}

type noteKey struct{}

// WithNote returns a context with the note of another guard.
func WithNote(ctx context.Context) context.Context {
	return context.WithValue(ctx, noteKey{}, &Note{outer: NoteOf(ctx)})
}

// NoteOf returns the note of the innermost guard, nil if there is none.
func NoteOf(ctx context.Context) *Note {
	n, _ := ctx.Value(noteKey{}).(*Note)
	return n
}

// Mark returns the value of a refusal's header field. It cannot be guessed, so the answer of an
// upstream server that a handler passes on does not have it. Nested guards have the same mark.
func (n *Note) Mark() string {
	if n.outer != nil {
		return n.outer.Mark()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mark == "" {
		n.mark = rand.Text()
	}
	return n.mark
}

// Outermost reports whether no guard is outside this one.
func (n *Note) Outermost() bool { return n.outer == nil }

// Refused records the latest refusal: the status of its answer, and the returned error, if any. A
// nil note records nothing.
func (n *Note) Refused(status int, err error) {
	for ; n != nil; n = n.outer {
		n.mu.Lock()
		n.status, n.err = status, err
		n.mu.Unlock()
	}
}

// Answered records the status of an answer to an error. It counts if the error is the latest
// refusal's.
func (n *Note) Answered(status int, err error) {
	if n.IsError(err) {
		n.Refused(status, err)
	}
}

// End records that the context of a handler behind the guard has ended before the handler returned.
func (n *Note) End() { n.ended.Store(true) }

// Over reports whether the context of a guarded handler, with its note, has ended, or the context
// of the handler behind an inner middleware.
func Over(ctx context.Context) bool { return ctx.Err() != nil || NoteOf(ctx).ended.Load() }

// GivesUp reports whether a guarded handler has returned this error because its context has ended.
func GivesUp(ctx context.Context, err error) bool {
	return Over(ctx) && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		ctx.Err() != nil && errors.Is(err, context.Cause(ctx)))
}

// IsStatus reports whether the latest refusal was answered with this status.
func (n *Note) IsStatus(status int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.status == status
}

// IsError reports whether an error is, or wraps, the latest refusal's.
func (n *Note) IsError(err error) bool {
	if n == nil || err == nil {
		return false
	}
	n.mu.Lock()
	refusal := n.err
	n.mu.Unlock()
	return refusal != nil && errors.Is(err, refusal)
}
