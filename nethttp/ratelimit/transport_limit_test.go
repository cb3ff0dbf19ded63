package ratelimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// A client waits until the server that has refused it has a token, and not until its bucket is full:
// whatever fields the server sends, and which of them the client reads.
func TestTransportWaitsForATokenOfTheServer(t *testing.T) {
	for name, test := range map[string]struct {
		server []policy.RateLimitOption
		client []policy.TransportOption
	}{
		"all fields":        {[]policy.RateLimitOption{policy.LegacyHeaders()}, nil},
		"the standard ones": {nil, nil},
		"Retry-After":       {[]policy.RateLimitOption{policy.HideLimits()}, nil},
		"X-RateLimit alone": {[]policy.RateLimitOption{policy.LegacyHeaders()}, []policy.TransportOption{ratelimit.Decoders(ratelimit.XRateLimit)}},
		"RateLimit alone":   {nil, []policy.TransportOption{ratelimit.Decoders(ratelimit.RateLimit)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memstore.New()
				defer st.Close()
				served := newLimiter(st, tokenbucket.PerMinute(1).Burst(15))
				handler := ratelimit.New(served, nethttp.Global(), test.server...)(http.NotFoundHandler())
				own := must(tokenbucket.New(st, "own", tokenbucket.PerSecond(1000)))
				client := ratelimit.Transport(handled{handler}, own, nethttp.Global(), test.client...)
				call := func() int {
					resp := must(client.RoundTrip(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://api.example/", nil))))
					_ = resp.Body.Close()
					return resp.StatusCode
				}
				for range 15 { // another client's, which takes all tokens
					must(served.Allow(t.Context(), "global"))
				}
				began := time.Now()
				if status := call(); status != http.StatusTooManyRequests {
					t.Fatalf("answered %d", status)
				}
				if status := call(); status != http.StatusNotFound || time.Since(began) != time.Minute {
					t.Errorf("answered %d after %v", status, time.Since(began))
				}
			})
		})
	}
}

// handled is a server without a network.
type handled struct{ handler http.Handler }

func (h handled) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.handler.ServeHTTP(w, r)
	return w.Result(), nil
}
