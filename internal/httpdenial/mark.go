package httpdenial

import (
	"context"
	"net/http"

	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// MarkHeader is the field by which the guards in front of a refusal know it. It travels with the
// answer, so that it passes whatever stands between, and comes with no other answer. No client sees it.
const MarkHeader = "Lockkeeper-Refusal"

// Mark has the answer with this header say to the guards in front that it is a refusal. It returns
// their note, nil if there is none; the caller tells it which status the refusal was answered with.
func Mark(ctx context.Context, h http.Header) *middleware.Note {
	n := middleware.NoteOf(ctx)
	if n != nil {
		h.Set(MarkHeader, n.Mark())
	}
	return n
}

// TakeMark reports whether a header has the mark of a note, and takes it out unless another guard is to
// see it.
func TakeMark(h http.Header, n *middleware.Note) bool {
	mark := h.Get(MarkHeader)
	if mark == "" {
		return false
	}
	if n.Outermost() {
		h.Del(MarkHeader)
	}
	return mark == n.Mark()
}

// WithoutMark calls f while a header has no mark.
func WithoutMark(h http.Header, f func()) {
	if mark, ok := h[MarkHeader]; ok {
		delete(h, MarkHeader)
		defer func() { h[MarkHeader] = mark }()
	}
	f()
}
