package idempotency

import (
	"encoding/json"
	"io"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

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

// retryAfter returns what a response's Retry-After asks for, or false if there is none that can be
// read.
func retryAfter(h http.Header) (time.Duration, bool) {
	text := h.Get("Retry-After")
	if text != "" && strings.Trim(text, "0123456789") == "" {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	when, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	now, err := http.ParseTime(h.Get("Date")) // the server's clock may differ
	if err != nil {
		now = time.Now()
	}
	return max(when.Sub(now), 0), true
}
