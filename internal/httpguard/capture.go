package httpguard

import (
	"bufio"
	"bytes"
	"maps"
	"net"
	"net/http"
)

// Capture is the http.ResponseWriter of a guarded handler. It holds the answer back until the
// attempt is settled, so that a client which has the answer finds it recorded. An answer that does
// not fit, or that the handler flushes or hijacks, is let through as it comes, and is not kept.
type Capture struct {
	w     http.ResponseWriter
	limit int

	before    http.Header // as it was when the handler began
	committed http.Header // as it was at the first byte; nil before
	status    int
	size      int
	buf       bytes.Buffer
	passing   bool // the answer goes straight to the client
}

// NewCapture returns a capture of up to limit bytes of body. The status is that of an answer whose
// handler sets none.
func NewCapture(w http.ResponseWriter, limit, status int) *Capture {
	return &Capture{w: w, limit: limit, status: status, before: w.Header().Clone()}
}

// Header is the header of the answer, which outer middleware may have written to.
func (c *Capture) Header() http.Header { return c.w.Header() }

// Status is the answer's, as it stands.
func (c *Capture) Status() int { return c.status }

// SetStatus changes the status of an answer that has not begun.
func (c *Capture) SetStatus(status int) {
	if c.committed == nil {
		c.status = status
	}
}

// Begun reports whether status and header are settled.
func (c *Capture) Begun() bool { return c.committed != nil }

// Size is how many bytes of body the handler has written.
func (c *Capture) Size() int { return c.size }

// WriteHeader begins the answer with this status. Informational ones (1xx) go to the client at
// once, and settle nothing.
func (c *Capture) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		if c.committed == nil || c.passing {
			c.w.WriteHeader(status)
		}
		return
	}
	if c.committed == nil {
		c.status = status
		c.Begin()
	}
}

// Begin settles status and header: what the handler changes in the header from now on is lost, as
// it would be without a capture.
func (c *Capture) Begin() {
	if c.committed == nil {
		c.committed = c.w.Header().Clone()
		if c.committed == nil {
			c.committed = http.Header{}
		}
	}
}

// Write implements http.ResponseWriter.
func (c *Capture) Write(p []byte) (int, error) {
	c.Begin()
	if !c.passing && c.buf.Len()+len(p) > c.limit {
		if err := c.pass(); err != nil {
			return 0, err
		}
	}
	var (
		n   int
		err error
	)
	if c.passing {
		n, err = c.w.Write(p)
	} else {
		n, err = c.buf.Write(p)
	}
	c.size += n
	return n, err
}

// WriteString implements io.StringWriter.
func (c *Capture) WriteString(s string) (int, error) { return c.Write([]byte(s)) }

// Flush sends what there is: from now on the answer is a stream.
func (c *Capture) Flush() { _ = c.FlushError() }

// FlushError is Flush for http.ResponseController.
func (c *Capture) FlushError() error {
	c.Begin()
	if err := c.pass(); err != nil {
		return err
	}
	return http.NewResponseController(c.w).Flush()
}

// Hijack gives the handler the connection. What it sends there is not captured. An answer that has
// begun goes first: it is the one to the request for an upgrade.
func (c *Capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if c.Begun() {
		if err := c.pass(); err != nil {
			return nil, nil, err
		}
	}
	conn, rw, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		c.Begin()
		c.passing = true
	}
	return conn, rw, err
}

// Unwrap lets http.ResponseController find what the capture does not do itself.
func (c *Capture) Unwrap() http.ResponseWriter { return c.w }

// pass begins to let the answer through.
func (c *Capture) pass() error {
	if c.passing {
		return nil
	}
	c.passing = true
	return c.emit()
}

// send sends an answer that was held back.
func (c *Capture) send() {
	if c.passing {
		return
	}
	c.passing = true
	_ = c.emit() // the client may have left, which is no matter of ours
}

func (c *Capture) emit() error {
	if c.committed != nil {
		h := c.w.Header()
		after := maps.Clone(h)
		clear(h)
		maps.Copy(h, c.committed)
		defer maps.Copy(h, after) // what it was given after its beginning are trailers
	}
	if c.committed != nil || c.status != http.StatusOK {
		c.w.WriteHeader(c.status)
	}
	if w, ok := c.w.(interface{ WriteHeaderNow() }); ok && c.committed != nil {
		w.WriteHeaderNow() // gin has only noted the status
	}
	if c.buf.Len() == 0 {
		return nil
	}
	_, err := c.w.Write(c.buf.Bytes())
	c.buf = bytes.Buffer{}
	return err
}

// response is what the handler answered, for the record.
func (c *Capture) response() response {
	after := c.committed
	if after == nil {
		after = c.w.Header()
	}
	return response{header: recorded(c.before, after), body: c.buf.Bytes()}
}
