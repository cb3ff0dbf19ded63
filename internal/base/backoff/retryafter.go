package backoff

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// RetryAfter returns the pause that an answer asks for: Retry-After in seconds or until a date, or
// Retry-After-Ms in milliseconds. It returns false if neither can be read. Of several pauses, also
// in one field, it returns the longest. A part of a second in Retry-After counts as a whole one,
// since the field has whole seconds (RFC 9110).
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
// this one: the answer's Date, plus its Age if a cache kept it. Without a Date it is this clock's
// time.
func ServerNow(h http.Header) time.Time {
	date, err := http.ParseTime(h.Get("Date"))
	if err != nil {
		return time.Now()
	}
	return date.Add(age(h))
}

// SinceSent returns the rest of a time that began when a server sent an answer: all of it unless a
// cache kept the answer, and zero if it is over.
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

// decimal returns the time of a decimal number of units, rounded up, or the longest time if they
// exceed it.
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
		n = min(n, math.MaxInt64-time.Second) + time.Second
	}
	return n / (time.Second / unit), true
}

// digits returns the time of a number of seconds, or the longest time if they exceed it.
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
