package httpmw

import (
	"bytes"
	"io"
	"net/http"
)

const (
	// maxEarly is the largest body that is read before its request waits, and maxEarlyBodies bounds
	// their sum in a middleware.
	maxEarly       = 64 << 10
	maxEarlyBodies = 16 << 20
)

// readEarly reads the body of a request that is about to wait, since an HTTP/1 server notices that
// a client disconnects only after it has read the whole request. The body remains readable.
// readEarly returns how many bytes to give back to the budget when the request is answered. It does
// not read large bodies, or bodies of unknown length.
func (b *budget) readEarly(r *http.Request) int64 {
	n := r.ContentLength
	if r.ProtoMajor != 1 || n <= 0 || n > maxEarly || r.Body == nil {
		return 0
	}
	if !b.take(n) {
		return 0
	}
	original := r.Body
	read, _ := io.ReadAll(io.LimitReader(original, n+1)) // the handler gets an error, too
	r.Body = readCloser{io.MultiReader(bytes.NewReader(read), original), original}
	return n
}
