package middleware

import (
	"context"
	"sync/atomic"
)

// Note says whether a request was refused, by middleware of this module, before its handler ran.
type Note struct {
	refused atomic.Bool
	outer   *Note
}

type noteKey struct{}

// WithNote returns a context for what comes after a middleware, and what that one is told by it.
func WithNote(ctx context.Context) (context.Context, *Note) {
	n := new(Note)
	n.outer, _ = ctx.Value(noteKey{}).(*Note)
	return context.WithValue(ctx, noteKey{}, n), n
}

// Refused reports whether the request was refused.
func (n *Note) Refused() bool { return n.refused.Load() }

// Refuse notes that the request with this context is refused.
func Refuse(ctx context.Context) {
	n, _ := ctx.Value(noteKey{}).(*Note)
	for ; n != nil; n = n.outer {
		n.refused.Store(true)
	}
}
