package idempotency

import (
	"bytes"
	"context"
	"io"
	"time"
)

// Bounds for reading a dropped response, so that its connection can be used again.
const (
	maxDrain  = 64 << 10
	drainTime = time.Second
)

// drop closes the body of a response.
func drop(body io.ReadCloser) {
	late := time.AfterFunc(drainTime, func() { _ = body.Close() }) // ends the reading
	_, _ = io.CopyN(io.Discard, body, maxDrain)
	late.Stop()
	_ = body.Close()
}

// read returns up to most bytes of a body. The reading may outlive the context: it ends when the
// caller closes the body.
func read(ctx context.Context, body io.Reader, most int64) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := io.ReadAll(io.LimitReader(body, most))
		done <- result{data, err}
	}()
	select {
	case r := <-done:
		return r.data, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// behind returns a body whose beginning has been read.
func behind(data []byte, rest io.ReadCloser) io.ReadCloser {
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(data), rest), rest}
}
