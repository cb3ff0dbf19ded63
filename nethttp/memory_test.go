package nethttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// A cookie's value is a substring of all cookies of its request. A limit keeps no more than the
// value. The test is not parallel, since it measures the heap.
func TestCookieDoesNotKeepItsRequest(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	limiter := must(tokenbucket.New(store, "api", tokenbucket.PerHour(1)))
	handler := ratelimit.New(limiter, nethttp.ByCookie("session"))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server := httptest.NewServer(handler)
	defer server.Close()
	send := func(session string) int {
		t.Helper()
		req := must(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody))
		req.Header.Set("Cookie", "session="+session+"; other="+strings.Repeat("c", 250<<10))
		resp := must(server.Client().Do(req))
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	heap := func() int {
		runtime.GC()
		runtime.GC() // what was in pools goes at the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc) //nolint:gosec // it fits
	}
	send("first")
	const keys = 100
	before := heap()
	for i := range keys {
		if status := send(fmt.Sprint(i)); status != http.StatusOK {
			t.Fatalf("status %d", status)
		}
	}
	if each := (heap() - before) / keys; each > 8<<10 {
		t.Errorf("%d bytes for each key", each)
	}
	if status := send("first"); status != http.StatusTooManyRequests {
		t.Errorf("status %d for a session that has used up its limit", status)
	}
}
