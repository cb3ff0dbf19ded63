package httpmw

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
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
	errScopeNoRoom  = errors.New("the bodies of a scope's requests take their share of policy.MaxBodies")
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

// scopeParts is the number of scopes that can use up a budget. The requests of one scope, such as
// many that wait for an answer, leave room for others.
const scopeParts = 4

// shares bound the bytes of each scope's bodies in memory.
type shares struct {
	max     int64
	mu      sync.Mutex
	byScope map[string]int64 // without zeros
}

// take takes a part of a scope's share. Without a scope there is no bound.
func (s *shares) take(scope string, n int64) bool {
	if scope == "" || n == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byScope[scope]+n > s.max {
		return false
	}
	if s.byScope == nil {
		s.byScope = make(map[string]int64)
	}
	s.byScope[scope] += n
	return true
}

func (s *shares) give(scope string, n int64) {
	if scope == "" || n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byScope[scope] -= n; s.byScope[scope] == 0 {
		delete(s.byScope, scope)
	}
}

// body is a request's body in pieces, as they were read. It takes a part of a budget, and of its
// scope's share.
type body struct {
	pieces [][]byte
	size   int64
	budget *budget
	shares *shares
	scope  string // empty while it is not known
	taken  int64
}

// read reads a request's body up to a limit. It allocates for the bytes that have arrived, and
// about as many again, not for the length that a client announces.
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
			if b.size+size > free {
				if err := b.take(size); err != nil {
					return err
				}
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

// of counts the body in the share of a scope from now on.
func (b *body) of(scope string) error {
	if !b.shares.take(scope, b.taken) {
		return errScopeNoRoom
	}
	b.scope = scope
	return nil
}

func (b *body) take(n int64) error {
	switch {
	case !b.shares.take(b.scope, n):
		return errScopeNoRoom
	case !b.budget.take(n):
		b.shares.give(b.scope, n)
		return errNoRoom
	}
	b.taken += n
	return nil
}

func (b *body) give(n int64) {
	b.taken -= n
	b.budget.used.Add(-n)
	b.shares.give(b.scope, n)
}

// release gives back everything that the body takes.
func (b *body) release() {
	if b.taken > 0 {
		b.give(b.taken)
	}
	b.pieces = nil
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

// show calls a function of the application with a copy of the request that has its own body. It
// removes the files of a form that the function parses.
func show(r *http.Request, b *body, f func(*http.Request)) {
	shown := withBody(r.Context(), r, b)
	defer func() {
		if form := shown.MultipartForm; form != nil && form != r.MultipartForm {
			_ = form.RemoveAll()
		}
	}()
	f(shown)
}
