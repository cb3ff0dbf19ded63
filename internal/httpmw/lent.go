package httpmw

import (
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// lentBody is the body of a request that a middleware's functions (keys, scopes, costs, Unless) may
// read before the handler does. Every function reads the body from its beginning: the bytes that
// one reads are copied for the next. Beyond the maximum of copied bytes, a function gets an error;
// the handler gets the whole body in any case.
//
// It replaces the request's body only while a function is called, and after that if a function has
// read of it: the server looks in its own request for the unread rest of a refused request. The
// middleware of one chain share it.
type lentBody struct {
	request  *http.Request
	original io.ReadCloser
	copied   []byte
	read     int     // of the copied bytes
	lender   *lender // nil unless a function is being called
	taken    int64   // of the budget
	budget   *budget
}

// lender is the allowance of a middleware's functions: up to max bytes of each body, in a budget
// for all.
type lender struct {
	max    int64
	bodies budget
}

// maxCopied is the largest number of bytes that are copied at a time.
const maxCopied = 32 << 10

// bodyError is the error of a function that could not read a body.
type bodyError struct{ error }

func (e bodyError) Unwrap() error { return e.error }

// lending returns a middleware whose functions may read bodies.
func (b *base[C]) lending(serve Middleware[C]) Middleware[C] {
	return func(c C, next func(C) error) error {
		r := b.Request(c)
		if !hasBody(r) {
			return serve(c, next)
		}
		defer func() { lentOf(r).release() }()
		return serve(c, next)
	}
}

func hasBody(r *http.Request) bool { return r.Body != nil && r.Body != http.NoBody }

// lentOf returns the lent body of a request, nil if there is none.
func lentOf(r *http.Request) *lentBody {
	l, _ := r.Body.(*lentBody)
	return l
}

// lend lets a function of the middleware's read the body of c from its beginning, until back is
// called. It returns nil if there is no body.
func (b *base[C]) lend(c C) *lentBody {
	r := b.Request(c)
	l := lentOf(r)
	switch {
	case l != nil:
	case !hasBody(r):
		return nil
	default:
		l = &lentBody{request: r, original: r.Body}
		r.Body = l
	}
	l.lender, l.read = &b.lender, 0
	return l
}

// back ends a lend.
func (l *lentBody) back() {
	if l == nil {
		return
	}
	l.lender, l.read = nil, 0
	if len(l.copied) == 0 {
		l.restore()
	}
}

// restore gives the request its own body again. If a function has given it another one, it does
// nothing.
func (l *lentBody) restore() {
	if l != nil && lentOf(l.request) == l {
		l.request.Body = l.original
	}
}

// release gives the copied bytes back to the budget when the request is answered.
func (l *lentBody) release() {
	if l != nil && l.taken > 0 {
		l.budget.used.Add(-l.taken)
		l.taken = 0
	}
}

// Read implements io.Reader.
func (l *lentBody) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case l.read < len(l.copied):
		n := copy(p, l.copied[l.read:])
		l.read += n
		return n, nil
	case l.lender != nil:
		return l.copy(p, l.lender)
	default:
		return l.original.Read(p)
	}
}

// copy reads for a function.
func (l *lentBody) copy(p []byte, from *lender) (int, error) {
	// One byte more, by which a too large body is recognised.
	most := min(int64(len(p)), maxCopied, from.max+1-int64(len(l.copied)))
	if most <= 0 {
		return 0, bodyError{&http.MaxBytesError{Limit: from.max}}
	}
	if l.budget == nil {
		l.budget = &from.bodies
	}
	if int64(len(l.copied))+most > free {
		if !l.budget.take(most) {
			return 0, bodyError{errNoRoom}
		}
		l.taken += most
	}
	n, err := l.original.Read(p[:most])
	l.copied = append(l.copied, p[:n]...)
	l.read = len(l.copied)
	if unused := min(l.taken, most-int64(n)); unused > 0 {
		l.taken -= unused
		l.budget.used.Add(-unused)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = bodyError{err}
	}
	return n, err
}

// Close implements io.Closer. A function that closes the body closes its own.
func (l *lentBody) Close() error {
	if l.lender != nil {
		return nil
	}
	return l.original.Close()
}

// unreadable returns the denial for a body that cannot be read, or that the application's function
// cannot read.
func (b *base[C]) unreadable(c C, err error) policy.Denial {
	var tooLarge *http.MaxBytesError
	if (errors.Is(err, errNoRoom) || errors.Is(err, errScopeNoRoom)) && b.Request(c).ProtoMajor == 1 {
		// Or the server would read the rest of the body first, however slowly it comes.
		b.Header(c).Set("Connection", "close")
	}
	switch {
	case errors.Is(err, errNoRoom):
		return policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: time.Second, Err: err}
	case errors.Is(err, errScopeNoRoom):
		return policy.Denial{Reason: policy.TooManyAtOnce, RetryAfter: time.Second, Err: err}
	case errors.Is(err, errBodyTooLarge), errors.As(err, &tooLarge),
		b.errors != nil && b.errors.StatusOf(err) == http.StatusRequestEntityTooLarge:
		return policy.Denial{Reason: policy.BodyTooLarge}
	default:
		return policy.Denial{Reason: policy.BodyUnreadable, Err: err}
	}
}
