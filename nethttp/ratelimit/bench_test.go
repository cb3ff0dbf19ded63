package ratelimit_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// discard is a ResponseWriter with a header alone.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

func bare(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = textPlain
	_, _ = w.Write(hello)
}

var (
	textPlain = []string{"text/plain"}
	hello     = []byte("hello")
)

// exchanges are a handler alone, and behind a limit in memory that allows all requests.
func exchanges(tb testing.TB) map[string]http.Handler {
	store := memstore.New()
	tb.Cleanup(func() { _ = store.Close() })
	limit := func(name string, plan tokenbucket.Plan, opts ...policy.RateLimitOption) http.Handler {
		l, err := tokenbucket.New(store, name, plan)
		if err != nil {
			tb.Fatal(err)
		}
		return ratelimit.New(l, nethttp.ByClientIP(clientip.Direct()), opts...)(http.HandlerFunc(bare))
	}
	fast, daily := tokenbucket.PerMinute(100).Burst(1e8), tokenbucket.PerDay(1e6).Burst(1e9) // never full, never empty
	tiers := tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) { return fast, nil })
	return map[string]http.Handler{
		"bare":       http.HandlerFunc(bare),
		"one limit":  limit("one", fast),
		"two limits": limit("two", tokenbucket.Limits{fast.Named("burst"), daily.Named("daily")}),
		"tiers":      limit("tiers", tiers),
		"legacy":     limit("legacy", fast, policy.LegacyHeaders()),
	}
}

func request(tb testing.TB) *http.Request {
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, "/", nil)
	if err != nil {
		tb.Fatal(err)
	}
	r.RemoteAddr = "203.0.113.7:1234"
	return r
}

func BenchmarkMiddleware(b *testing.B) {
	handlers := exchanges(b)
	for _, name := range []string{"bare", "one limit", "two limits", "tiers", "legacy"} {
		b.Run(name, func(b *testing.B) {
			h, r, w := handlers[name], request(b), &discard{make(http.Header)}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header) // the memory of a header is no cost of the middleware's
				h.ServeHTTP(w, r)
			}
		})
	}
}
