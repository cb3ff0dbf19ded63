package backoff

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter returns the pause that an answer's Retry-After asks for, in seconds or until a date, or its
// Retry-After-Ms in milliseconds, or false if there is none that can be read. Of several, also in one
// field, it is the longest. A part of a second is a whole one, as the field has it (RFC 9110).
func RetryAfter(h http.Header) (longest time.Duration, ok bool) {
	for _, text := range h["Retry-After"] {
		d, readable := retryAfter(text, h)
		longest, ok = max(longest, d), ok || readable
	}
	for _, text := range h["Retry-After-Ms"] {
		if d, readable := decimal(text, time.Millisecond); readable {
			longest, ok = max(longest, SinceSent(h, d)), true
		}
	}
	return longest, ok
}

func retryAfter(text string, h http.Header) (time.Duration, bool) {
	longest, ok := time.Duration(0), false
	for part := range strings.SplitSeq(text, ",") {
		if d, readable := decimal(strings.TrimSpace(part), time.Second); readable {
			longest, ok = max(longest, SinceSent(h, d)), true
		}
	}
	if ok {
		return longest, true
	}
	when, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return max(when.Sub(ServerNow(h)), 0), true
}

// ServerNow returns the time by the clock of the server that sent an answer, which may differ from
// this one: the answer's Date, and its Age if a cache kept it. Without a Date it is this clock's
// time.
func ServerNow(h http.Header) time.Time {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Now()
	}
	return date.Add(age(h))
}

// SinceSent returns what is left of a time that began when a server sent an answer: all of it,
// unless a cache kept the answer, and nothing of a time that is over.
func SinceSent(h http.Header, d time.Duration) time.Duration {
	kept := age(h)
	if d <= kept { // also where the difference would overflow
		return 0
	}
	return d - kept
}

func age(h http.Header) time.Duration {
	if values := h["Age"]; len(values) > 0 {
		d, _ := digits(values[0])
		return d
	}
	return 0
}

// decimal returns the time of so many units, rounded up, the longest one if they are more than that.
func decimal(text string, unit time.Duration) (time.Duration, bool) {
	whole, part, _ := strings.Cut(text, ".")
	if strings.Trim(part, "0123456789") != "" {
		return 0, false
	}
	n, ok := digits(whole)
	switch {
	case !ok, n == math.MaxInt64:
		return n, ok
	case strings.Trim(part, "0") != "":
		n += time.Second
	}
	return n / (time.Second / unit), true
}

// digits returns the time of so many seconds, the longest one if they are more than that.
func digits(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds > int64(math.MaxInt64/time.Second) {
		return math.MaxInt64, true
	}
	return time.Duration(seconds) * time.Second, true
}
