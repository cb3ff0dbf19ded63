package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// encoder writes a decision into header fields; one for each version of the draft.
type encoder func(http.Header, tokenbucket.Decision)

// draft11 is draft-ietf-httpapi-ratelimit-headers-11: two structured-field Lists of Strings. The
// fields are added, so that several limiters on the way of a request each have their say.
//
// RateLimit-Policy gives the quota q, the burst, and the window w, the time that refills it.
// RateLimit gives the remaining quota r, which so never exceeds q, and in t how long that lasts:
// until the bucket is full again, or on a denial, at most until it is worth trying.
func draft11(h http.Header, d tokenbucket.Decision) {
	policies, limits := make(httpsfv.List, 0, len(d.Limits)), make(httpsfv.List, 0, len(d.Limits))
	for _, l := range d.Limits {
		policy := httpsfv.NewItem(l.Name)
		policy.Params.Add("q", l.Capacity)
		policy.Params.Add("w", seconds(l.Window))
		policies = append(policies, policy)

		reset := l.Reset
		if l.RetryAfter > 0 { // Retry-After must not point earlier than t
			reset = min(reset, l.RetryAfter)
		}
		limit := httpsfv.NewItem(l.Name)
		limit.Params.Add("r", l.Remaining)
		limit.Params.Add("t", int64((reset+time.Second-1)/time.Second))
		limits = append(limits, limit)
	}
	add(h, "Ratelimit-Policy", policies)
	add(h, "Ratelimit", limits)
}

func add(h http.Header, name string, list httpsfv.List) {
	if text, err := httpsfv.Marshal(list); err == nil {
		h[name] = append(h[name], text)
	}
}

// legacy writes the X-RateLimit fields that came before the draft, for the limit nearest to
// exhaustion.
func legacy(h http.Header, d tokenbucket.Decision) {
	nearest := d.Limits[0]
	for _, l := range d.Limits[1:] {
		if l.RetryAfter > nearest.RetryAfter || l.RetryAfter == nearest.RetryAfter && l.Remaining < nearest.Remaining {
			nearest = l
		}
	}
	h.Set("X-Ratelimit-Limit", strconv.FormatInt(nearest.Capacity, 10))
	h.Set("X-Ratelimit-Remaining", strconv.FormatInt(nearest.Remaining, 10))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(int64((nearest.Reset+time.Second-1)/time.Second), 10))
}

// seconds rounds up to whole seconds, and is at least 1.
func seconds(d time.Duration) int64 { return max(int64((d+time.Second-1)/time.Second), 1) }
