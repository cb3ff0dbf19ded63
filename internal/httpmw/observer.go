package httpmw

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// Observer is a http.ResponseWriter that notes the status of the answer that passes through it.
type Observer struct {
	http.ResponseWriter
	status   int // zero before the answer begins
	noted    int // the last status that the handler has set for an answer that has not begun
	hijacked bool
	events   bool // the answer is a stream of events
}

// Note notes a status that the handler has set, in a framework where setting it does not begin the
// answer.
func (o *Observer) Note(status int) {
	if !o.Begun() {
		o.noted = status
	}
}

// Noted returns the last noted status, zero if there is none.
func (o *Observer) Noted() int { return o.noted }

// Silent reports whether the handler has neither begun an answer nor set its status.
func (o *Observer) Silent() bool { return !o.Begun() && o.noted == 0 }

// Status returns the status of the answer after the handler has returned. It is zero if the status
// is not known because the handler has hijacked the connection.
func (o *Observer) Status() int {
	switch {
	case o.hijacked:
		return 0
	case o.status == 0:
		return http.StatusOK // the default of net/http
	}
	return o.status
}

// Begun reports whether status and header are on their way.
func (o *Observer) Begun() bool { return o.status != 0 || o.hijacked }

// Begin notes the status of an answer. Only the first one counts, and informational ones do not.
func (o *Observer) Begin(status int) {
	if o.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		o.status = status
		o.events = isEvents(o.Header())
	}
}

// Stream notes the status of an answer that is sent, for an unknown time, after its handlers have
// returned.
func (o *Observer) Stream(status int) {
	o.Begin(status)
	o.events = true
}

// Streams reports whether the answer lasts for as long as its client likes: a stream of events, or
// another protocol.
func (o *Observer) Streams() bool {
	return o.events || o.hijacked || o.status == http.StatusSwitchingProtocols
}

// WriteHeader implements http.ResponseWriter.
func (o *Observer) WriteHeader(status int) {
	o.Begin(status)
	o.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (o *Observer) Write(p []byte) (int, error) {
	o.Begin(http.StatusOK)
	return o.ResponseWriter.Write(p)
}

// WriteString implements io.StringWriter.
func (o *Observer) WriteString(s string) (int, error) {
	o.Begin(http.StatusOK)
	return io.WriteString(o.ResponseWriter, s)
}

// ReadFrom implements io.ReaderFrom, with which net/http sends files without a copy. A reader that
// fails at once begins no answer.
func (o *Observer) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(o.ResponseWriter, r)
	if n > 0 {
		o.Begin(http.StatusOK)
	}
	return n, err
}

// Flush implements http.Flusher.
func (o *Observer) Flush() { _ = o.FlushError() }

// FlushError is Flush for http.ResponseController.
func (o *Observer) FlushError() error {
	err := http.NewResponseController(o.ResponseWriter).Flush()
	if err == nil {
		o.Begin(http.StatusOK)
	}
	return err
}

// Hijack implements http.Hijacker.
func (o *Observer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(o.ResponseWriter).Hijack()
	o.hijacked = o.hijacked || err == nil
	return conn, rw, err
}

// Unwrap lets http.ResponseController use the methods that the observer lacks.
func (o *Observer) Unwrap() http.ResponseWriter { return o.ResponseWriter }
