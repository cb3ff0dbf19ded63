package httpmw

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
)

// Pieces of a body double in size, from firstPiece to lastPiece. The first 4 KiB are not counted,
// since a connection takes more: so clients that send large bodies slowly do not exclude small
// ones.
const (
	firstPiece = 1 << 10
	lastPiece  = 64 << 10
	free       = 4 << 10
)

var (
	errBodyTooLarge = errors.New("the request's body is too large")
	errNoRoom       = errors.New("the bodies of requests take as much memory as they may (policy.MaxBodies)")
)

// budget bounds the bytes of the bodies that are in memory.
type budget struct {
	max  int64
	used atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.max {
		b.used.Add(-n)
		return false
	}
	return true
}

// body is a request's body in the pieces that it was read in, and its share of a budget.
type body struct {
	pieces [][]byte
	size   int64
	budget *budget
	taken  int64
}

// read reads a request's body up to a limit. It allocates for bytes that have arrived, and about as
// many again, not for the length that a client announces.
func (b *body) read(r *http.Request, limit int64) error {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if r.ContentLength > limit {
		return errBodyTooLarge
	}
	var probe [1]byte // has the first byte of a piece
	for {
		n, err := r.Body.Read(probe[:])
		if n > 0 {
			if b.size == limit {
				return errBodyTooLarge
			}
			size := min(max(b.size, firstPiece), lastPiece, limit-b.size)
			if announced := r.ContentLength - b.size; announced > 0 {
				size = min(size, announced)
			}
			if b.size+size > free && !b.take(size) {
				return errNoRoom
			}
			piece := append(make([]byte, 0, size), probe[0])
			for err == nil && len(piece) < cap(piece) {
				n, err = r.Body.Read(piece[len(piece):cap(piece)])
				piece = piece[:len(piece)+n]
			}
			b.pieces = append(b.pieces, piece)
			b.size += int64(len(piece))
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

func (b *body) take(n int64) bool {
	if !b.budget.take(n) {
		return false
	}
	b.taken += n
	return true
}

// release returns the body's share of the budget.
func (b *body) release() {
	if b.taken > 0 {
		b.budget.used.Add(-b.taken)
	}
	b.pieces, b.taken = nil, 0
}

// reader returns a reader of the body from its beginning.
func (b *body) reader() io.Reader {
	pieces := net.Buffers(slices.Clone(b.pieces))
	return &pieces
}

// withBody returns the handler's request: with its context, and its body from the beginning.
func withBody(ctx context.Context, r *http.Request, b *body) *http.Request {
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = readCloser{b.reader(), r.Body}
	}
	return r
}

type readCloser struct {
	io.Reader
	io.Closer
}

// show calls a function of the application with a copy of the request that has its own body.
// Neither what the function reads nor the files of a form that it parses remain.
func show(r *http.Request, b *body, f func(*http.Request)) {
	shown := withBody(r.Context(), r, b)
	defer func() {
		if form := shown.MultipartForm; form != nil && form != r.MultipartForm {
			_ = form.RemoveAll()
		}
	}()
	f(shown)
}
