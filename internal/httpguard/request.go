package httpguard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"net/http"
)

var errBodyTooLarge = errors.New("the request's body is too large")

// readRequest reads a request's body, up to a limit, and returns it with the request's
// fingerprint: a digest of all that says what the request asks for.
func readRequest(r *http.Request, maxBody int64) (body, fingerprint []byte, err error) {
	if r.ContentLength > maxBody {
		return nil, nil, errBodyTooLarge
	}
	h := sha256.New()
	for _, part := range []string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, r.Header.Get("Content-Type")} {
		writePart(h, part)
	}
	if r.Body != nil && r.Body != http.NoBody {
		var buf bytes.Buffer
		if r.ContentLength > 0 { // at once, but no more than a client gets for nothing
			buf.Grow(int(min(r.ContentLength, 16<<10)) + bytes.MinRead)
		}
		n, err := buf.ReadFrom(io.LimitReader(r.Body, maxBody+1))
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge), err == nil && n > maxBody:
			return nil, nil, errBodyTooLarge
		case err != nil:
			return nil, nil, err
		}
		body = buf.Bytes()
		h.Write(body)
	}
	return body, h.Sum(nil), nil
}

func writePart(h hash.Hash, s string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(s)))
	h.Write(n[:])
	_, _ = io.WriteString(h, s)
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
