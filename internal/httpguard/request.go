package httpguard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"

	"github.com/lockkeeper/lockkeeper/internal/parts"
)

var errBodyTooLarge = errors.New("the request's body is too large")

// readRequest reads a request's body, up to a limit, and returns it with the request's
// fingerprint: a digest of all that says what the request asks for.
func readRequest(r *http.Request, maxBody int64) (body, fingerprint []byte, err error) {
	if r.ContentLength > maxBody {
		return nil, nil, errBodyTooLarge
	}
	var most [256]byte
	head := parts.Append(most[:0], r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get("Content-Type"))
	if r.Body == nil || r.Body == http.NoBody {
		sum := sha256.Sum256(head)
		return nil, sum[:], nil
	}
	var buf bytes.Buffer     // of the head, and the body behind it
	if r.ContentLength > 0 { // at once, but no more than a client gets for nothing
		buf.Grow(len(head) + int(min(r.ContentLength, 16<<10)) + bytes.MinRead)
	}
	buf.Write(head)
	n, err := buf.ReadFrom(io.LimitReader(r.Body, maxBody+1))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge), err == nil && n > maxBody:
		return nil, nil, errBodyTooLarge
	case err != nil:
		return nil, nil, err
	}
	sum := sha256.Sum256(buf.Bytes())
	return buf.Bytes()[len(head):], sum[:], nil
}

// withBody returns the request as the handler shall see it: with its context and its body again.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		original := r.Body
		r.Body = struct {
			io.Reader
			io.Closer
		}{bytes.NewReader(body), original}
	}
	return r
}
