package adapter

import "net/http"

// observer is the ResponseWriter of a Deny hook behind a guard. It notes the status.
type observer struct {
	http.ResponseWriter
	status int
	begun  bool
}

func (o *observer) WriteHeader(status int) {
	if !o.begun && status >= http.StatusOK {
		o.status, o.begun = status, true
	}
	o.ResponseWriter.WriteHeader(status)
}

func (o *observer) Write(p []byte) (int, error) {
	o.begun = true
	return o.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which the writer of a guard's handler does.
func (o *observer) Flush() {
	o.begun = true
	_ = http.NewResponseController(o.ResponseWriter).Flush()
}

func (o *observer) Unwrap() http.ResponseWriter { return o.ResponseWriter }
