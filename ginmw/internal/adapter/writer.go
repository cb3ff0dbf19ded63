package adapter

import (
	"bufio"
	"cmp"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// writer is gin's ResponseWriter on a capture. In gin, WriteHeader only notes the status, which
// counts, with the header, from the first byte on.
type writer struct {
	gin.ResponseWriter // for the methods that are neither captured nor changed: CloseNotify, Pusher
	capture            *httpmw.Capture
}

var _ gin.ResponseWriter = (*writer)(nil)

func (w *writer) Header() http.Header { return w.capture.Header() }

func (w *writer) WriteHeader(status int) {
	switch {
	case informational(status):
		w.capture.WriteHeader(status)
	case status > 0:
		w.capture.SetStatus(status)
	}
}

func (w *writer) WriteHeaderNow() { w.capture.Begin() }

func (w *writer) Write(p []byte) (int, error) { return w.capture.Write(p) }

func (w *writer) WriteString(s string) (int, error) { return w.capture.WriteString(s) }

func (w *writer) Status() int { return w.capture.Status() }

// Size is -1 before the answer begins, as in gin.
func (w *writer) Size() int {
	if !w.capture.Begun() {
		return -1
	}
	return w.capture.Size()
}

func (w *writer) Written() bool { return w.capture.Begun() }

func (w *writer) Flush() { w.capture.Flush() }

func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.capture.Hijack() }

func (w *writer) Unwrap() http.ResponseWriter { return w.capture }

// replaceable is a gin.ResponseWriter that stands for another one.
type replaceable struct{ gin.ResponseWriter }

func (r *replaceable) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// observedWriter is gin's ResponseWriter with an observer of the last status that the handler sets
// before the first byte. A writer behind it that holds the answer back may not have that status.
type observedWriter struct {
	gin.ResponseWriter
	observer *httpmw.Observer
}

// begin tells the observer that the answer begins.
func (w *observedWriter) begin() { w.observer.Begin(cmp.Or(w.observer.Noted(), w.Status())) }

func (w *observedWriter) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.observer.Note(status)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *observedWriter) WriteHeaderNow() {
	w.begin()
	w.ResponseWriter.WriteHeaderNow()
}

func (w *observedWriter) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

func (w *observedWriter) WriteString(s string) (int, error) {
	w.begin()
	return w.ResponseWriter.WriteString(s)
}

func (w *observedWriter) Flush() {
	w.begin()
	w.ResponseWriter.Flush()
}

func (w *observedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.observer.Hijack() }

func (w *observedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func informational(status int) bool {
	return status >= 100 && status < 200 && status != http.StatusSwitchingProtocols
}

// hinter is gin's ResponseWriter, but it sends informational answers at once. Gin would take the
// status of one for that of the answer.
type hinter struct{ gin.ResponseWriter }

func (h hinter) WriteHeader(status int) {
	if !informational(status) {
		h.ResponseWriter.WriteHeader(status)
		return
	}
	var w http.ResponseWriter = h.ResponseWriter
	for {
		if _, notes := w.(gin.ResponseWriter); !notes {
			w.WriteHeader(status)
			return
		}
		outer, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return // a hint may be left out
		}
		w = outer.Unwrap()
	}
}

func (h hinter) Unwrap() http.ResponseWriter { return h.ResponseWriter }
