// Package httprequest is what middleware owes a server that hands its handler a copy of a request.
package httprequest

import "net/http"

// KeepForm has a request know of the form that a handler has parsed of a copy of it. The server
// removes the form's temporary files, and looks for them in the request that it made.
func KeepForm(original, handled *http.Request) {
	if original.MultipartForm == nil {
		original.MultipartForm = handled.MultipartForm
	}
}
