package httpmw

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
)

const (
	// maxEarly is the largest body that is read before its request waits, and maxEarlyBodies bounds
	// their sum in a middleware.
	maxEarly       = 64 << 10
	maxEarlyBodies = 16 << 20
)

// earlyBodies are bodies that were read before their requests wait. An HTTP/1 server notices that a
// client disconnects only after it has read the whole request.
type earlyBodies struct{ taken atomic.Int64 }

// read reads the body of a request, for which it remains readable, and returns how many bytes to
// return to the budget when the request is answered. It does not read large bodies, or those of
// unknown length.
func (b *earlyBodies) read(r *http.Request) int64 {
	n := r.ContentLength
	if r.ProtoMajor != 1 || n <= 0 || n > maxEarly || r.Body == nil {
		return 0
	}
	if b.taken.Add(n) > maxEarlyBodies {
		b.taken.Add(-n)
		return 0
	}
	original := r.Body
	read, _ := io.ReadAll(io.LimitReader(original, n+1)) // an error is there for the handler, too
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(read), original), original}
	return n
}
