package ratelimit

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Decoder returns how long from now a server takes no more requests of the key of this answer. Zero
// or less means that it takes them. A Decoder must not read the answer's body, and is called by
// several goroutines. A panic propagates, and loses the answer.
//
// Decoders of this package ignore values that they cannot read, such as negative numbers and NaN.
// They compare times with the answer's Date, so that the server's clock may differ, and subtract
// its Age if a cache kept the answer.
type Decoder func(resp *http.Response) time.Duration

// Decoders replaces [Standard] as the readers of answers: the longest of their pauses holds the
// key. So this reads one more field:
//
//	ratelimit.Decoders(ratelimit.Standard, shopify)
//
// Without any, no answer holds a key. It panics if one is nil.
func Decoders(decoders ...Decoder) policy.TransportOption {
	all := make([]Decoder, len(decoders))
	for i, d := range decoders {
		if naming.IsNil(d) {
			panic("ratelimit: Decoders: nil decoder")
		}
		all[i] = d
	}
	return setting.Func(func(s *setting.Settings) { s.Decoders = all })
}

// Standard returns the time of [RetryAfter], which is when to come back. Without one it returns the
// longest time of [RateLimit], [XRateLimit], [OpenAI] and [Anthropic]; some of these are the time
// until a limit is fully restored.
func Standard(resp *http.Response) time.Duration {
	if d, ok := retryAfter(resp); ok {
		return d
	}
	return max(RateLimit(resp), XRateLimit(resp), OpenAI(resp), Anthropic(resp))
}

// RetryAfter reads Retry-After (RFC 9110), in seconds, also with a decimal part, which is rounded
// up, or as a date; and Retry-After-Ms, in milliseconds. The longest of several counts. Some
// servers send the field with status 200, so every status counts but two that are not about other
// requests: with 202 the time is for fetching the result of this request, and with 409 for trying
// this one again.
func RetryAfter(resp *http.Response) time.Duration {
	d, _ := retryAfter(resp)
	return d
}

func retryAfter(resp *http.Response) (time.Duration, bool) {
	if resp.StatusCode == http.StatusAccepted || resp.StatusCode == http.StatusConflict {
		return 0, false
	}
	return backoff.RetryAfter(resp.Header)
}

// RateLimit reads RateLimit (draft-ietf-httpapi-ratelimit-headers): the longest t of the exhausted
// limits,
//
//	RateLimit: "burst";r=12;t=1, "daily";r=0;t=3600
//
// and the form of earlier drafts, limit=100, remaining=0, reset=50.
func RateLimit(resp *http.Response) (longest time.Duration) {
	values := resp.Header["Ratelimit"]
	if len(values) == 0 {
		return 0
	}
	if list, err := httpsfv.UnmarshalList(values); err == nil {
		for _, member := range list {
			item, ok := member.(httpsfv.Item)
			if !ok {
				continue
			}
			remaining, _ := item.Params.Get("r")
			after, _ := item.Params.Get("t")
			longest = max(longest, exhausted(remaining, after))
		}
	} else if dictionary, err := httpsfv.UnmarshalDictionary(values); err == nil {
		longest = exhausted(valueOf(dictionary, "remaining"), valueOf(dictionary, "reset"))
	}
	return backoff.SinceSent(resp.Header, longest)
}

// valueOf returns the value of a dictionary's member; nil if there is none, or if it is a list.
func valueOf(d *httpsfv.Dictionary, name string) any {
	member, _ := d.Get(name)
	item, _ := member.(httpsfv.Item)
	return item.Value
}

// exhausted returns the time after which a limit is restored, in seconds of a structured field, or
// zero if something remains.
func exhausted(remaining, after any) time.Duration {
	seconds, ok := after.(int64)
	if remaining != int64(0) || !ok {
		return 0
	}
	return time.Duration(min(max(seconds, 0), int64(math.MaxInt64/time.Second))) * time.Second
}

// XRateLimit reads X-RateLimit-Remaining and X-RateLimit-Reset, if nothing remains; also with the
// names X-Rate-Limit and RateLimit. The size of the reset decides its meaning: less than 10^8 are
// seconds from now; more are seconds since 1970, as GitHub sends them, from 10^11 on in thousandths
// or smaller parts. It may also be a duration, such as 1m30s.
func XRateLimit(resp *http.Response) time.Duration {
	return max(
		longestReset(resp.Header, "X-Ratelimit-Remaining", "X-Ratelimit-Reset"),
		longestReset(resp.Header, "X-Rate-Limit-Remaining", "X-Rate-Limit-Reset"),
		longestReset(resp.Header, "Ratelimit-Remaining", "Ratelimit-Reset"),
	)
}

// OpenAI reads the fields of OpenAI, and of proxies such as LiteLLM: x-ratelimit-reset-requests if
// x-ratelimit-remaining-requests is 0, and the same for tokens. The values are durations, such as
// 6m0s or 20ms, or numbers as in [XRateLimit].
func OpenAI(resp *http.Response) time.Duration {
	return max(
		longestReset(resp.Header, "X-Ratelimit-Remaining-Requests", "X-Ratelimit-Reset-Requests"),
		longestReset(resp.Header, "X-Ratelimit-Remaining-Tokens", "X-Ratelimit-Reset-Tokens"),
	)
}

// Anthropic reads the fields of Anthropic: anthropic-ratelimit-requests-reset if
// anthropic-ratelimit-requests-remaining is 0, and the same for tokens, input-tokens and
// output-tokens. The values are times, as in RFC 3339.
func Anthropic(resp *http.Response) time.Duration {
	return max(
		longestReset(resp.Header, "Anthropic-Ratelimit-Requests-Remaining", "Anthropic-Ratelimit-Requests-Reset"),
		longestReset(resp.Header, "Anthropic-Ratelimit-Tokens-Remaining", "Anthropic-Ratelimit-Tokens-Reset"),
		longestReset(resp.Header, "Anthropic-Ratelimit-Input-Tokens-Remaining", "Anthropic-Ratelimit-Input-Tokens-Reset"),
		longestReset(resp.Header, "Anthropic-Ratelimit-Output-Tokens-Remaining", "Anthropic-Ratelimit-Output-Tokens-Reset"),
	)
}

// longestReset returns the longest time in the fields named after whose partners, the fields named
// remaining, are 0. Partners have the same position.
func longestReset(h http.Header, remaining, after string) (longest time.Duration) {
	left, until := h[remaining], h[after]
	for i := range min(len(left), len(until)) {
		if n, ok := number(left[i]); ok && n == 0 {
			longest = max(longest, fromNow(h, until[i]))
		}
	}
	return longest
}

// Numbers below maxFromNow are seconds from now; others, below maxSeconds, are seconds since 1970.
const (
	maxFromNow = 1e8  // three years; as a time it is in 1973
	maxSeconds = 1e11 // a time in the year 5138; as milliseconds it is in 1973
)

// fromNow returns the time from now that a text means: a duration, a date, or a number as
// [XRateLimit] documents. It is zero if the text is none of these, and not above zero for the past.
func fromNow(h http.Header, text string) time.Duration {
	n, ok := number(text)
	if !ok {
		if when, err := time.Parse(time.RFC3339, text); err == nil {
			return when.Sub(backoff.ServerNow(h))
		}
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0
		}
		return backoff.SinceSent(h, d)
	}
	if n < maxFromNow {
		return backoff.SinceSent(h, time.Duration(n*float64(time.Second)))
	}
	for n >= maxSeconds {
		n /= 1000
	}
	seconds, part := math.Modf(n)
	return time.Unix(int64(seconds), int64(part*float64(time.Second))).Sub(backoff.ServerNow(h))
}

// number reads a decimal number without a sign.
func number(text string) (float64, bool) {
	if text == "" || strings.Trim(text, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}
