package httpmw

import (
	"bytes"
	"io"
	"net/http"
	"sync/atomic"
)

const (
	// maxEarly is the largest body that is read before its request waits, and maxEarlyBodies the most that
	// a middleware has of them.
	maxEarly       = 64 << 10
	maxEarlyBodies = 16 << 20
)

// earlyBodies are bodies that were read before their requests wait. A server that speaks HTTP/1 notices that
// a client leaves only once it has read the request to its end.
type earlyBodies struct{ taken atomic.Int64 }

// read reads the body of a request, which has it still, and returns how many bytes to give back when the
// request is answered. It leaves alone what is large, or of unknown length.
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
