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

// ContentType is that of a problem (RFC 9457).
const ContentType = "application/problem+json"

// setHeader sets the fields that belong to a denial, but for the body's. The denial has its problem
// type from then on, which begins with types.
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
// request, or if the application has a page, and the type is not its URL.
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
// answer, through the middleware in between. No client sees it.
const markHeader = "Lockkeeper-Refusal"

// mark marks the answer with this header as a refusal, for the guards outside. It returns their
// note, nil if there is none, in which the caller records the refusal's status.
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
