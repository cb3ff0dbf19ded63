package mwtest

import (
	"net/http"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// maxAllocs is the maximum of allocations that a limit in memory adds to a request.
const maxAllocs = 6

// costRows are about the cost of a middleware. They count the allocations of the process.
var costRows = []row{
	{"a limit in memory adds six allocations", func(t *rig) {
		r := costlyRequest(t)
		allocs := func(h http.Handler) float64 {
			return testing.AllocsPerRun(1000, func() { h.ServeHTTP(&discard{make(http.Header)}, r) })
		}
		bare, limited := unlimitedAndLimited(t, t.framework)
		if before, after := allocs(bare), allocs(limited); after-before > maxAllocs {
			t.Errorf("it adds %v to %v", after-before, before)
		}
	}},
}

// Benchmark measures a server without middleware, and with a limit in memory that allows every
// request. The difference is the cost of the limit.
func Benchmark(b *testing.B, f Framework) {
	bare, limited := unlimitedAndLimited(b, f)
	b.Run("bare", func(b *testing.B) { measure(b, bare) })
	b.Run("limited", func(b *testing.B) { measure(b, limited) })
}

func measure(b *testing.B, h http.Handler) {
	r, w := costlyRequest(b), &discard{make(http.Header)}
	b.ReportAllocs()
	for b.Loop() {
		clear(w.header) // the memory of a header is no cost of the middleware's
		h.ServeHTTP(w, r)
	}
}

// unlimitedAndLimited keys by client address, as most applications do.
func unlimitedAndLimited(tb testing.TB, f Framework) (unlimited, limited http.Handler) {
	tb.Helper()
	store := memstore.New()
	tb.Cleanup(func() { _ = store.Close() })
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100).Burst(1e8)) // never full, never empty
	if err != nil {
		tb.Fatal(err)
	}
	return f.Serve(hello), f.Serve(hello, RateLimit{Limiter: limiter, By: Key{Kind: ByClientIP}})
}

func costlyRequest(tb testing.TB) *http.Request {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, Path+"1", http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	r.RemoteAddr = "203.0.113.7:1234"
	return r
}

// discard is a ResponseWriter with a header, and nothing else.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

var (
	textPlain = []string{"text/plain"}
	helloText = []byte("hello")
)

func hello(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Type"] = textPlain
	_, _ = w.Write(helloText)
}
