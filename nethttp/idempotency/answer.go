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

// maxProblem is how much of a problem is read.
const maxProblem = 64 << 10

// refused reports whether a response says that nothing was done, or not yet, and that the request
// may be sent again. A replay does not: it is what the request was answered, and will be.
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

// problemOf returns which problem a response is, which is the last part of its type, empty if it is
// none. The response's body can be read as before.
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
