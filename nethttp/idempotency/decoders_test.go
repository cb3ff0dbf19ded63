package idempotency_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// roundTrip is a RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What says for how long a refusal asks to wait: Retry-After, or else what ratelimit.Standard reads, or the
// decoders that are given.
func TestTransportDecodesRefusals(t *testing.T) {
	own := func(resp *http.Response) time.Duration {
		d, _ := time.ParseDuration(resp.Header.Get("X-Wait"))
		return d
	}
	for name, c := range map[string]struct {
		header http.Header
		opts   []idempotency.TransportOption
		want   time.Duration // at least, and at most half as much more
	}{
		"Retry-After":             {http.Header{"Retry-After": {"2"}, "Ratelimit": {`"a";r=0;t=20`}}, nil, 2 * time.Second},
		"RateLimit":               {http.Header{"Ratelimit": {`"a";r=0;t=8`}}, nil, 8 * time.Second},
		"milliseconds":            {http.Header{"Retry-After-Ms": {"4000"}}, nil, 4 * time.Second},
		"an own field":            {http.Header{"X-Wait": {"6s"}}, []idempotency.TransportOption{idempotency.WithDecoders(own)}, 6 * time.Second},
		"the longest of decoders": {http.Header{"X-Wait": {"6s"}, "Retry-After": {"10"}}, []idempotency.TransportOption{idempotency.WithDecoders(own, ratelimit.RetryAfter)}, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				client := http.Client{Transport: idempotency.Transport(roundTrip(func(*http.Request) (*http.Response, error) {
					if tries++; tries == 1 {
						return &http.Response{StatusCode: http.StatusTooManyRequests, Header: c.header, Body: http.NoBody}, nil
					}
					return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
				}), c.opts...)}
				began := time.Now()
				resp, err := client.Post("http://shop.example", "text/plain", http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if took := time.Since(began); resp.StatusCode != http.StatusOK || took < c.want || took > c.want*3/2 {
					t.Errorf("status %d after %v, want %v", resp.StatusCode, took, c.want)
				}
			})
		})
	}
}
