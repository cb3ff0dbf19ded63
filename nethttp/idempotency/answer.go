package idempotency

import (
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
)

// maxProblem bounds the part of a problem that is read.
const maxProblem = 64 << 10

// refused reports whether a response means that nothing was done, or not yet, and that the request
// may be sent again. A replay does not: every repeat gets the same answer.
func refused(resp *http.Response) bool {
	if Replayed(resp) {
		return false
	}
	switch resp.StatusCode {
	case http.StatusTooEarly, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return true
	case http.StatusConflict:
		reason := problemOf(resp)
		return reason == policy.InFlight || reason == policy.Locked
	}
	return false
}

// problemOf returns the problem of a response, the last part of its type; empty if there is none.
// The response's body can be read as before.
func problemOf(resp *http.Response) policy.Reason {
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); media != httpmw.ContentType {
		return ""
	}
	data, _ := io.ReadAll(io.LimitReader(resp.Body, maxProblem)) // a body that failed fails again
	resp.Body = behind(data, resp.Body)
	var problem struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(data, &problem) != nil {
		return ""
	}
	return policy.Reason(problem.Type[strings.LastIndexAny(problem.Type, "#/:=?")+1:])
}
