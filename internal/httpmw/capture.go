package httpmw

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// Capture is the http.ResponseWriter of a guarded handler. It holds the answer back until the
// attempt is settled, so that the answer is recorded before a client has it. Until then the handler
// has its own header, and nothing of its answer reaches the outer writer. An answer that does not
// fit, or that the handler flushes or hijacks, passes through as it is written. The capture keeps a
// copy of a flushed answer, since reverse proxies flush every answer without a length: see
// [copied].
type Capture struct {
	w     http.ResponseWriter
	limit int
	note  *middleware.Note

	before    http.Header // of w, when the handler began
	header    http.Header // the handler's
	committed http.Header // the handler's, at the first byte; nil before
	status    int
	noted     bool // the handler has set the status, and perhaps not begun the answer
	size      int
	buf       bytes.Buffer
	passing   bool // the answer goes straight to the client
	copying   bool // and into buf
	left      bool // the client has left while the answer was copied
	large     bool // the answer does not fit
	sent      bool // the handler has returned, and all calls go to w
	marked    bool // as a refusal of middleware behind the guard
}

// newCapture returns a capture of up to limit bytes of body, for a guard with this note.
func newCapture(w http.ResponseWriter, note *middleware.Note, limit int) *Capture {
	c := &Capture{w: w, note: note, limit: limit, status: http.StatusOK, before: w.Header().Clone(), header: w.Header().Clone()}
	if c.header == nil {
		c.header = http.Header{}
	}
	return c
}

// Header returns the header of the answer, with the fields that outer middleware has set.
func (c *Capture) Header() http.Header {
	if c.sent {
		return c.w.Header()
	}
	return c.header
}

// Status returns the status of the answer so far.
func (c *Capture) Status() int { return c.status }

// SetStatus changes the status of an answer that has not begun.
func (c *Capture) SetStatus(status int) {
	if c.committed == nil {
		c.status, c.noted = status, true
	}
}

// Inherit sets the status that middleware outside has set. It does not count as the handler's.
func (c *Capture) Inherit(status int) { c.status = status }

// Silent reports whether the handler has neither begun an answer nor set its status. net/http makes
// that an empty answer with 200.
func (c *Capture) Silent() bool { return c.committed == nil && !c.noted }

// checkStatus panics, as net/http does, if the status is invalid.
func checkStatus(status int) {
	if !validStatus(status) {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
}

// Begun reports whether status and header are settled.
func (c *Capture) Begun() bool { return c.committed != nil }

// Size returns the number of body bytes that the handler has written.
func (c *Capture) Size() int { return c.size }

// WriteHeader begins the answer with this status. It panics, as net/http does, if the status is
// invalid. An informational status (1xx) goes to the client at once, and settles nothing.
func (c *Capture) WriteHeader(status int) {
	switch {
	case c.sent:
		c.w.WriteHeader(status)
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		c.inform(status)
	case c.committed == nil:
		checkStatus(status)
		c.status = status
		c.Begin()
	}
}

// inform sends an informational answer with the current header.
func (c *Capture) inform(status int) {
	switch {
	case c.passing:
		c.w.WriteHeader(status)
	case c.committed == nil:
		h := c.w.Header()
		outer := maps.Clone(h)
		withoutMark(c.header, func() { apply(h, changes(c.before, c.header)) })
		c.w.WriteHeader(status)
		clear(h)
		maps.Copy(h, outer)
	}
}

// Begin settles status and header: later changes of the handler to the header are lost unless they
// are trailers, as without a capture. It panics as WriteHeader does.
func (c *Capture) Begin() {
	if c.committed == nil {
		checkStatus(c.status)
		c.committed = c.header.Clone()
		c.marked = takeMark(c.committed, c.note)
	}
}

// Write implements http.ResponseWriter.
func (c *Capture) Write(p []byte) (int, error) {
	if c.sent {
		return c.w.Write(p)
	}
	c.Begin()
	if c.keeps() && c.buf.Len()+len(p) > c.limit {
		c.large, c.copying, c.left = true, false, false
		err := c.pass()
		c.buf = bytes.Buffer{}
		if err != nil {
			return 0, err
		}
	}
	var (
		n   = len(p)
		err error
	)
	if c.passing && !c.left {
		n, err = c.w.Write(p)
		n, err = c.unlessLeft(n, len(p), err)
	}
	if c.keeps() {
		_, _ = c.buf.Write(p[:n])
	}
	c.size += n
	return n, err
}

// keeps reports whether buf has the whole body so far.
func (c *Capture) keeps() bool { return !c.passing || c.copying }

// unlessLeft returns the results of a write. While the answer is copied it hides the error of a
// client that has left: the handler runs on, for the copy.
func (c *Capture) unlessLeft(n, all int, err error) (int, error) {
	if err == nil || !c.copying || slices.ContainsFunc(handlersErrors, func(own error) bool { return errors.Is(err, own) }) {
		return n, err
	}
	c.left = true
	return all, nil
}

// handlersErrors are the errors of a writer that do not mean that the client has left.
var handlersErrors = []error{http.ErrBodyNotAllowed, http.ErrContentLength, errors.ErrUnsupported}

// WriteString implements io.StringWriter.
func (c *Capture) WriteString(s string) (int, error) { return c.Write([]byte(s)) }

// Flush sends the answer so far: from now on the answer passes.
func (c *Capture) Flush() { _ = c.FlushError() }

// FlushError is Flush for http.ResponseController.
func (c *Capture) FlushError() error {
	c.Begin()
	if !c.passing {
		c.copying = copied(c.status, c.committed)
	}
	if err := c.pass(); err != nil || c.left {
		return err
	}
	_, err := c.unlessLeft(0, 0, http.NewResponseController(c.w).Flush())
	return err
}

// copied reports whether a flushed answer may be kept when it has ended: it is neither a stream of
// events, whose end is arbitrary, nor another protocol.
func copied(status int, h http.Header) bool {
	return status != http.StatusSwitchingProtocols && !isEvents(h)
}

// isEvents reports whether an answer with this header is a stream of events.
func isEvents(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "text/event-stream")
}

// Hijack gives the handler the connection. The bytes that it sends there are not captured. An
// answer that has begun goes first: it answers the request for an upgrade.
func (c *Capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if c.Begun() {
		if err := c.pass(); err != nil {
			return nil, nil, err
		}
		sendHeader(c.w)
	}
	conn, rw, err := http.NewResponseController(c.w).Hijack()
	if err == nil {
		c.Begin()
		c.passing, c.copying = true, false
	}
	return conn, rw, err
}

// Unwrap lets http.ResponseController use the methods that the capture lacks.
func (c *Capture) Unwrap() http.ResponseWriter { return c.w }

// pass begins to pass an answer that has begun. The next write sends the header.
func (c *Capture) pass() error {
	if c.passing {
		return nil
	}
	c.passing = true
	r := response{header: changes(c.before, c.committed), body: c.buf.Bytes()}
	apply(c.w.Header(), r.header)
	c.w.WriteHeader(c.status)
	_, err := c.unlessLeft(0, 0, r.sendBody(c.w))
	return err
}

// Pass settles the answer of a framework that sends it after its handlers have returned, and not
// through the capture. It is not kept. Pass panics as WriteHeader does.
func (c *Capture) Pass(status int) {
	c.SetStatus(status)
	c.Begin()
	c.passing = true
}

// Fits reports whether a body of n bytes is kept. If not, the answer counts as too large.
func (c *Capture) Fits(n int) bool {
	c.large = c.large || n > c.limit
	return !c.large
}

// end records, after the handler has returned, whether an answer that has not begun is a refusal.
func (c *Capture) end() {
	if c.committed == nil {
		c.marked = takeMark(c.header, c.note)
	}
}

// set sets a header field of an answer that was held back.
func (c *Capture) set(name, value string) {
	if c.committed != nil {
		c.committed.Set(name, value)
		return
	}
	c.header.Set(name, value)
}

// refused reports whether the answer is the refusal of middleware behind the guard.
func (c *Capture) refused() bool { return c.marked && c.note.IsStatus(c.status) }

// send sends the held part of the answer after the handler has returned: all of it, or its
// trailers. It does not touch the outer writer if the handler did nothing. Later writes to the
// capture pass through. Errors are ignored: the client has disconnected.
func (c *Capture) send() {
	r := c.response()
	switch {
	case c.passing:
		apply(c.w.Header(), r.trailer)
	case c.Begun() || c.status != http.StatusOK:
		_ = r.send(c.w, c.status, c.Begun())
	case len(r.header) > 0:
		apply(c.w.Header(), r.header)
	}
	c.passing, c.sent = true, true
}

// drop discards the answer so far. Later writes pass through: middleware outside may still have the
// capture, and answer an error or a panic with it.
func (c *Capture) drop() {
	c.buf = bytes.Buffer{}
	c.passing, c.sent = true, true
}

// response returns the handler's answer.
func (c *Capture) response() response {
	if c.committed == nil {
		return response{header: changes(c.before, c.header)}
	}
	return response{
		header:  changes(c.before, c.committed),
		trailer: trailers(c.committed, changes(c.committed, c.header)),
		body:    c.buf.Bytes(),
	}
}
