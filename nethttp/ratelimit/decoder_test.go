package ratelimit_test

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// header returns a header of names and values.
func header(pairs ...string) http.Header {
	h := make(http.Header)
	for n := 0; n < len(pairs); n += 2 {
		h.Add(pairs[n], pairs[n+1])
	}
	return h
}

const year = 365 * 24 * time.Hour

func TestDecoders(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		header http.Header
		want   time.Duration
	}{
		{"nothing", nil, 0},
		{"much is left", header("X-RateLimit-Remaining", "10", "X-RateLimit-Reset", "60", "RateLimit", `"a";r=1;t=60`,
			"X-RateLimit-Remaining-Tokens", "149984", "X-RateLimit-Reset-Tokens", "6m0s"), 0},

		{"seconds", header("Retry-After", "2"), 2 * s},
		{"zero", header("Retry-After", "0"), 0},
		{"negative", header("Retry-After", "-5"), 0},
		{"NaN", header("Retry-After", "NaN"), 0},
		{"an exponent", header("Retry-After", "1e9"), 0},
		{"garbage", header("Retry-After", "soon"), 0},
		{"no value", http.Header{"Retry-After": {}}, 0},
		{"the largest", header("Retry-After", "99999999999999999999999"), math.MaxInt64},
		{"a part above the largest", header("Retry-After", "9223372036.5"), math.MaxInt64},
		{"the longest of several", header("Retry-After", "2", "Retry-After", "7", "Retry-After", "x"), 7 * s},
		{"a list", header("Retry-After", "2, 1"), 2 * s},
		{"a list of others", header("Retry-After", "x, 7"), 7 * s},
		{"a decimal number", header("Retry-After", "2.0"), 2 * s},
		{"a part of a second", header("Retry-After", "1.5"), 2 * s},
		{"a millionth", header("Retry-After", "0.000001"), s},
		{"nothing but a point", header("Retry-After", "."), 0},
		{"two points in seconds", header("Retry-After", "1.2.3"), 0},
		{"milliseconds", header("Retry-After-Ms", "1250"), 1250 * time.Millisecond},
		{"a part of a millisecond", header("Retry-After-Ms", "0.5"), time.Millisecond},
		{"milliseconds beside seconds", header("Retry-After-Ms", "1250", "Retry-After", "2"), 2 * s},
		{"milliseconds of a cache", header("Retry-After-Ms", "7000", "Age", "5"), 2 * s},
		{"a date", header("Retry-After", "Sat, 01 Jan 2000 00:00:04 GMT"), 4 * s},
		{"a date that is past", header("Retry-After", "Fri, 31 Dec 1999 23:00:00 GMT"), 0},
		{"a date of another clock",
			header("Retry-After", "Fri, 02 Jan 2026 00:00:04 GMT", "Date", "Fri, 02 Jan 2026 00:00:00 GMT"), 4 * s},
		{"a Date that cannot be read", header("Retry-After", "Sat, 01 Jan 2000 00:00:04 GMT", "Date", "today"), 4 * s},
		{"of a cache", header("Retry-After", "7", "Age", "5"), 2 * s},
		{"of a cache that is old", header("Retry-After", "7", "Age", "500"), 0},
		{"a date of a cache",
			header("Retry-After", "Fri, 02 Jan 2026 00:00:04 GMT", "Date", "Fri, 02 Jan 2026 00:00:00 GMT", "Age", "3"), s},
		{"an Age that cannot be read", header("Retry-After", "7", "Age", "-5"), 7 * s},

		{"RateLimit", header("RateLimit", `"a";r=0;t=5`), 5 * s},
		{"RateLimit of several", header("RateLimit", `"a";r=0;t=5, "b";r=9;t=500, "c";t=20;r=0`), 20 * s},
		{"RateLimit in several fields", header("RateLimit", `"a";r=0;t=5`, "RateLimit", `"b";r=0;t=6`), 6 * s},
		{"RateLimit of a token", header("RateLimit", `default;r=0;t=5`), 5 * s},
		{"RateLimit without t", header("RateLimit", `"a";r=0`), 0},
		{"RateLimit without r", header("RateLimit", `"a";t=5`), 0},
		{"RateLimit that is negative", header("RateLimit", `"a";r=0;t=-5, "b";r=-1;t=5`), 0},
		{"RateLimit of other types", header("RateLimit", `"a";r=0;t="5", "b";r="0";t=5, ("c");r=0;t=5`), 0},
		{"RateLimit of ages", header("RateLimit", `"a";r=0;t=999999999999999`), 9223372036 * s},
		{"RateLimit of a cache", header("RateLimit", `"a";r=0;t=5`, "Age", "4"), s},
		{"RateLimit that is garbage", header("RateLimit", `"a`), 0},
		{"RateLimit of an earlier draft", header("RateLimit", `limit=100, remaining=0, reset=50`), 50 * s},
		{"RateLimit of an earlier draft, with some left", header("RateLimit", `limit=100, remaining=1, reset=50`), 0},
		{"RateLimit of an earlier draft, in part", header("RateLimit", `limit=100, remaining=0`), 0},

		{"GitHub", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684860"), 60 * s},
		{"GitHub of another clock", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1767312060",
			"Date", "Fri, 02 Jan 2026 00:00:00 GMT"), 60 * s},
		{"GitHub of the past", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684700"), 0},
		{"Discord", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684800.500"), s / 2},
		{"milliseconds since 1970", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684800250"), s / 4},
		{"microseconds since 1970", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684802000000"), 2 * s},
		{"seconds from now", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60"), 60 * s},
		{"a part of a second", header("X-RateLimit-Remaining", "0.0", "X-RateLimit-Reset", "0.25"), s / 4},
		{"a year from now", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "31536000"), year},
		{"unlimited", header("X-RateLimit-Remaining", "-1", "X-RateLimit-Reset", "60"), 0},
		{"a negative reset", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "-60"), 0},
		{"a reset of NaN", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "NaN"), 0},
		{"an infinite reset", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "Inf"), 0},
		{"400 digits", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", strings.Repeat("9", 400)), 0},
		{"two points", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1.2.3"), 0},
		{"remaining without reset", header("X-RateLimit-Remaining", "0"), 0},
		{"reset without remaining", header("X-RateLimit-Reset", "60"), 0},
		{"several, of which one is empty", header("X-RateLimit-Remaining", "3", "X-RateLimit-Reset", "600",
			"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "6"), 6 * s},
		{"X-Rate-Limit", header("X-Rate-Limit-Remaining", "0", "X-Rate-Limit-Reset", "946684860"), 60 * s},
		{"RateLimit-Remaining", header("RateLimit-Remaining", "0", "RateLimit-Reset", "60"), 60 * s},
		{"seconds from now of a cache", header("X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "60", "Age", "50"), 10 * s},

		{"OpenAI's tokens", header("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "6m0s"), 6 * time.Minute},
		{"OpenAI's requests", header("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "1.5s"), 3 * s / 2},
		{"OpenAI's milliseconds", header("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "20ms"), 20 * time.Millisecond},
		{"both of OpenAI", header("x-ratelimit-remaining-requests", "0", "x-ratelimit-reset-requests", "1s",
			"x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "9s"), 9 * s},
		{"requests are left", header("x-ratelimit-remaining-requests", "7", "x-ratelimit-reset-requests", "9s",
			"x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "1s"), s},
		{"LiteLLM", header("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "60"), 60 * s},
		{"a negative duration", header("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "-6m0s"), 0},
		{"a duration of ages", header("x-ratelimit-remaining-tokens", "0", "x-ratelimit-reset-tokens", "99999999999h"), 0},

		{"Anthropic's tokens", header("anthropic-ratelimit-tokens-remaining", "0", "anthropic-ratelimit-tokens-reset", "2000-01-01T00:00:05Z"), 5 * s},
		{"the longest of Anthropic", header("anthropic-ratelimit-requests-remaining", "0", "anthropic-ratelimit-requests-reset", "2000-01-01T00:00:07Z",
			"anthropic-ratelimit-input-tokens-remaining", "0", "anthropic-ratelimit-input-tokens-reset", "2000-01-01T00:00:09Z",
			"anthropic-ratelimit-output-tokens-remaining", "1", "anthropic-ratelimit-output-tokens-reset", "2000-01-01T00:01:00Z"), 9 * s},
		{"Anthropic of another clock", header("anthropic-ratelimit-tokens-remaining", "0", "anthropic-ratelimit-tokens-reset", "2026-01-02T00:00:05Z",
			"Date", "Fri, 02 Jan 2026 00:00:00 GMT"), 5 * s},

		{"the longest of those without Retry-After", header("RateLimit", `"a";r=0;t=5`,
			"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "4"), 5 * s},
		{"Retry-After beside longer ones", header("Retry-After", "3", "RateLimit", `"a";r=0;t=5`,
			"X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "900"), 3 * s},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // at the beginning of 2000
				for _, status := range []int{200, 301, 404, 429, 503} {
					if got := ratelimit.Standard(&http.Response{StatusCode: status, Header: c.header}); max(got, 0) != c.want {
						t.Errorf("with status %d %v, want %v", status, got, c.want)
					}
				}
			})
		})
	}
}

// What these answers ask for is about their own request alone.
func TestRetryAfterOfOneRequest(t *testing.T) {
	for _, status := range []int{http.StatusAccepted, http.StatusConflict} {
		resp := &http.Response{StatusCode: status, Header: header("Retry-After", "2", "RateLimit", `"a";r=0;t=1`)}
		if got := ratelimit.Standard(resp); got != time.Second {
			t.Errorf("status %d: %v", status, got)
		}
	}
}

func FuzzDecoders(f *testing.F) {
	for _, seed := range []string{
		"2", "-1", "NaN", "1e400", `"a";r=0;t=5`, "remaining=0, reset=1", "6m0s", "946684860", "Fri, 02 Jan 2026 00:00:04 GMT",
	} {
		f.Add(seed, "0")
	}
	f.Fuzz(func(t *testing.T, value, other string) {
		resp := &http.Response{StatusCode: 429, Header: header(
			"Retry-After", value, "RateLimit", value, "X-RateLimit-Remaining", other, "X-RateLimit-Reset", value,
			"x-ratelimit-remaining-tokens", other, "x-ratelimit-reset-tokens", value, "Age", other, "Date", value)}
		if d := ratelimit.Standard(resp); d < 0 {
			t.Errorf("%v", d)
		}
	})
}
