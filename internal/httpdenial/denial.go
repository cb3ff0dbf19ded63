// Package httpdenial is what a refusal looks like in HTTP.
package httpdenial

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// ContentType is that of a problem (RFC 9457).
const ContentType = "application/problem+json"

// SetHeader sets the fields that belong to a denial, but for the body's. The denial has its problem type
// from then on, which begins with types.
func SetHeader(h http.Header, d *policy.Denial, types string) {
	d.TypeBase = types
	if d.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((d.RetryAfter+time.Second-1)/time.Second), 10))
	}
	switch d.Reason {
	case policy.KeyMissing, policy.KeyMalformed, policy.FenceMissing:
		h.Add("Link", "<"+d.Type()+`>; rel="describedby"`)
	}
}

// Body is a denial's problem body.
func Body(d policy.Denial) []byte {
	body, _ := json.Marshal(d) // strings and numbers only: it cannot fail
	return append(body, '\n')
}

// Write answers with a denial, whose header fields have been set.
func Write(w http.ResponseWriter, d policy.Denial) {
	w.Header().Set("Content-Type", ContentType)
	w.WriteHeader(d.Status())
	_, _ = w.Write(Body(d)) // the client may have left, which is no matter of ours
}
