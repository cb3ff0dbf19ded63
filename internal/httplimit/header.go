package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// legacy writes the X-RateLimit fields that came before the draft, for the limit nearest to
// exhaustion.
func legacy(h http.Header, states []tokenbucket.LimitState) {
	nearest := states[0]
	for _, s := range states[1:] {
		if s.RetryAfter > nearest.RetryAfter || s.RetryAfter == nearest.RetryAfter && s.Remaining < nearest.Remaining {
			nearest = s
		}
	}
	h.Set("X-Ratelimit-Limit", strconv.FormatInt(nearest.Capacity, 10))
	h.Set("X-Ratelimit-Remaining", strconv.FormatInt(nearest.Remaining, 10))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(roundUp(nearest.Reset), 10))
}

// roundUp is a duration in whole seconds.
func roundUp(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
