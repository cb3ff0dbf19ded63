package concurrency_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
)

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

// Each tenant has one export at a time, on all instances together, so that no tenant delays
// another.
func Example_perTenant() {
	exports, err := semaphore.New(memstore.New(), "exports", 1)
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	oneEach := concurrency.New(exports, nethttp.ByPathValue("tenant"))
	mux.Handle("GET /exports/{tenant}", oneEach(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.PathValue("tenant") == "acme" {
			// During the export:
			fmt.Println("acme", get(mux, "/exports/acme").Code)
			fmt.Println("zenith", get(mux, "/exports/zenith").Code)
		}
	})))
	get(mux, "/exports/acme")
	// Output:
	// acme 429
	// zenith 200
}

// A pool of eight connections serves eight requests of this process at a time. 16 more wait for up
// to half a second, in the order of arrival. Others are refused at once.
func Example_inFrontOfAPool() {
	pool, err := semaphore.New(memstore.New(), "pool", 8, semaphore.WithMaxWaiting(16))
	if err != nil {
		panic(err)
	}
	h := concurrency.New(pool, nethttp.Global(), policy.Wait(500*time.Millisecond))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "42 rows") }))
	fmt.Println(get(h, "/rows").Body)
	// Output: 42 rows
}

// A job takes a permit from the same semaphore, and leaves less room for requests.
func Example_sharedWithAJob() {
	exports, err := semaphore.New(memstore.New(), "exports", 1)
	if err != nil {
		panic(err)
	}
	h := concurrency.New(exports, nethttp.Global())(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	permit, err := exports.Acquire(context.Background(), "global") // what Global keys by
	if err != nil {
		panic(err)
	}
	fmt.Println("during the job:", get(h, "/export").Code)
	fmt.Println(permit.Release(context.Background()))
	fmt.Println("after the job:", get(h, "/export").Code)
	// Output:
	// during the job: 429
	// <nil>
	// after the job: 200
}
