package httpmw

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// requestID returns the ID of a request.
func requestID(r *http.Request) middleware.RequestID {
	id := middleware.RequestID{Method: r.Method, Path: r.URL.Path}
	if keys := r.Header["Idempotency-Key"]; len(keys) > 0 {
		id.Key = keys[0]
	}
	return id
}

// keepForm gives a request the form that a handler has parsed from a copy of it: the server removes
// the form's temporary files, and looks for them in its own request. When the request's context has
// ended the server may have done so already, so keepForm removes the files.
func keepForm(original, handled *http.Request) {
	switch {
	case handled.MultipartForm == nil || original.MultipartForm != nil:
	case original.Context().Err() != nil:
		_ = handled.MultipartForm.RemoveAll()
	default:
		original.MultipartForm = handled.MultipartForm
	}
}
