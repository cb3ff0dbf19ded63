package nethttp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// Middleware that needs no route wraps the mux, and others wrap the handler.
func Example_roundTheMuxAndRoundAHandler() {
	st := memstore.New()
	limiter, err := tokenbucket.New(st, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	carts, err := lock.New(st, "carts")
	if err != nil {
		panic(err)
	}
	limit := ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))
	oneAtATime := exclusive.New(carts, nethttp.ByPathValue("id"))

	routes := http.NewServeMux()
	routes.Handle("PUT /carts/{id}", oneAtATime(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease, _ := lock.FromContext(r.Context())
		_, _ = fmt.Fprint(w, "has the lock of cart ", lease.Key())
	})))
	handler := limit(routes)

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/carts/42", nil))
	fmt.Println(w.Body)
	// Output: has the lock of cart 42
}

// Clients of the office are not limited, and those of some networks are refused before all else.
func ExampleClientIn() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1))
	if err != nil {
		panic(err)
	}
	office, err := clientip.ParseNetworks("198.51.100.0/24", "2001:db8:7::/48")
	if err != nil {
		panic(err)
	}
	blocked, err := clientip.ParseNetworks("203.0.113.66", "192.0.2.0/24")
	if err != nil {
		panic(err)
	}
	direct := clientip.Direct()
	isBlocked := nethttp.ClientIn(direct, blocked...)
	limited := ratelimit.New(limiter, nethttp.ByClientIP(direct), nethttp.Unless(nethttp.ClientIn(direct, office...)))(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") }))
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isBlocked(r) {
			http.Error(w, "Forbidden", http.StatusForbidden)
			return
		}
		limited.ServeHTTP(w, r)
	})

	for _, client := range []string{"198.51.100.7:1234", "203.0.113.7:1234", "203.0.113.66:1234"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = client
		for range 2 {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			fmt.Print(w.Code, " ")
		}
	}
	// Output: 200 200 200 429 403 403
}

type userKey struct{}

// The authenticated user, or else the client's address. A user whose name is an address has another
// key than a client with that address.
func ExampleFirstOf_userOrAddress() {
	key := nethttp.FirstOf(nethttp.ByContext(userKey{}), nethttp.ByClientIP(clientip.Direct()))

	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "203.0.113.7:49152"
	fmt.Println(key(r))

	r = r.WithContext(context.WithValue(r.Context(), userKey{}, "203.0.113.7"))
	fmt.Println(key(r))
	// Output:
	// 1:203.0.113.7 <nil>
	// 0:203.0.113.7 <nil>
}

type tenantKey struct{}

// Each tenant has a limit for each route. Authentication has put the tenant into the context.
func ExampleJoin_perTenantAndRoute() {
	key := nethttp.Join(nethttp.ByContext(tenantKey{}), nethttp.ByPattern())

	routes := http.NewServeMux()
	routes.HandleFunc("GET /reports/{year}", func(_ http.ResponseWriter, r *http.Request) {
		fmt.Println(key(r))
	})
	r := httptest.NewRequest(http.MethodGet, "/reports/2026", nil)
	r = r.WithContext(context.WithValue(r.Context(), tenantKey{}, "acme"))
	routes.ServeHTTP(httptest.NewRecorder(), r)
	// Output: 4:acme19:GET /reports/{year} <nil>
}

// Health checks count for no limit and take no lock.
func ExampleUnless_healthChecks() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1))
	if err != nil {
		panic(err)
	}
	health := nethttp.Unless(func(r *http.Request) bool { return r.URL.Path == "/health" })
	handler := ratelimit.New(limiter, nethttp.Global(), health)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	for _, path := range []string{"/health", "/health", "/", "/"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /health 200
	// /health 200
	// / 200
	// / 429
}

// The reason of a 503 is for the log, and not for the client.
func ExampleOnError_log() {
	st := memstore.New()
	orders, err := guard.New(st, "checkout")
	if err != nil {
		panic(err)
	}
	logged := nethttp.OnError(func(r *http.Request, err error) {
		fmt.Println(r.Method, r.URL.Path, "outage:", errors.Is(err, store.ErrUnavailable))
	})
	handler := idempotency.New(orders, nethttp.Unscoped(), logged)(http.NotFoundHandler())

	_ = st.Close() // an outage
	r := httptest.NewRequest(http.MethodPost, "/checkout", nil)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	fmt.Println(w.Code)
	// Output:
	// POST /checkout outage: true
	// 503
}

func visit(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w
}

// A page for browsers. Retry-After is set already.
func ExampleOnDeny_page() {
	limiter, err := tokenbucket.New(memstore.New(), "pages", tokenbucket.PerHour(60).Burst(1))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.Global(), nethttp.OnDeny(func(w http.ResponseWriter, _ *http.Request, d policy.Denial) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(d.Status())
		_, _ = fmt.Fprint(w, "<h1>One moment, please</h1>")
	}))(http.NotFoundHandler())

	visit(h)
	w := visit(h)
	fmt.Println(w.Code, w.Header().Get("Retry-After"), w.Body)
	// Output: 429 60 <h1>One moment, please</h1>
}

// An API's own error bodies, with the state of the limit.
func ExampleOnDeny_limit() {
	limiter, err := tokenbucket.New(memstore.New(), "requests", tokenbucket.PerHour(60).Burst(2))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.Global(),
		policy.ProblemTypes("https://shop.example/errors#"),
		nethttp.OnDeny(func(w http.ResponseWriter, _ *http.Request, d policy.Denial) {
			body := map[string]any{"error": d.Title(), "see": d.Type()}
			if d.Reason == policy.QuotaExceeded {
				body["limit"] = d.Limit.Capacity
				body["remaining"] = d.Limit.Remaining
				body["reset"] = math.Ceil(d.Limit.Reset.Seconds())
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(d.Status())
			_ = json.NewEncoder(w).Encode(body)
		}))(http.NotFoundHandler())

	for range 2 {
		visit(h)
	}
	fmt.Print(visit(h).Body)
	// Output: {"error":"Request cannot be satisfied as assigned quota has been exceeded","limit":2,"remaining":0,"reset":120,"see":"https://iana.org/assignments/http-problem-types#quota-exceeded"}
}
