package httpmw

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// ContentType is the content type of a problem (RFC 9457).
const ContentType = "application/problem+json"

// setHeader sets the header fields of a denial, except those of the body. It also sets types as the
// base of the denial's problem type.
func setHeader(h http.Header, d *policy.Denial, types string) {
	d.TypeBase = types
	if d.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((d.RetryAfter+time.Second-1)/time.Second), 10))
	}
	if linked(d) {
		h.Add("Link", "<"+d.Page()+`>; rel="describedby"`)
	}
}

// linked reports whether an answer has a Link to the denial's page: if its client has to change the
// request, or if the application has a page whose URL is not the type.
func linked(d *policy.Denial) bool {
	switch d.Reason {
	case policy.KeyMissing, policy.KeyMalformed, policy.FenceMissing:
		return true
	case policy.QuotaExceeded, policy.AbnormalUsage, policy.ReducedCapacity:
		return d.TypeBase != ""
	}
	return false
}

// WriteProblem answers with a denial whose header fields are set.
func WriteProblem(w http.ResponseWriter, d policy.Denial) {
	w.Header().Set("Content-Type", ContentType)
	w.WriteHeader(d.Status())
	_, _ = w.Write(Body(d)) // fails only if the client has left
}

// Body is a denial's problem body.
func Body(d policy.Denial) []byte {
	body, _ := json.Marshal(d) // strings and numbers only: it cannot fail
	return append(body, '\n')
}

// markHeader is the header field by which outer guards recognise a refusal. It travels with the
// answer, through the middleware in between. No client receives it.
const markHeader = "Lockkeeper-Refusal"

// mark marks the answer with this header as a refusal, for the guards outside. It returns the note
// of the innermost one, nil if there is none. The caller records the refusal's status in it.
func mark(ctx context.Context, h http.Header) *middleware.Note {
	n := middleware.NoteOf(ctx)
	if n != nil {
		h.Set(markHeader, n.Mark())
	}
	return n
}

// takeMark reports whether a header has the mark of a note, and removes it unless another guard is
// outside.
func takeMark(h http.Header, n *middleware.Note) bool {
	mark := h.Get(markHeader)
	if mark == "" {
		return false
	}
	if n.Outermost() {
		h.Del(markHeader)
	}
	return mark == n.Mark()
}

// withoutMark calls f while a header has no mark.
func withoutMark(h http.Header, f func()) {
	if mark, ok := h[markHeader]; ok {
		delete(h, markHeader)
		defer func() { h[markHeader] = mark }()
	}
	f()
}
