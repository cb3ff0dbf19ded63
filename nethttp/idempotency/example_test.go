package idempotency_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// post sends an order of a user. Real users are known by their authentication.
func post(h http.Handler, user, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/checkout", strings.NewReader(body))
	r.Header.Set("X-User", user)
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Whoever sends an order again is told what came of it, and nobody else is. Another order needs another
// key.
func Example_checkout() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	placed := 0
	once := idempotency.New(orders, nethttp.ScopeBy(nethttp.ByHeader("X-User")), policy.Required())
	h := once(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		placed++
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, "order ", placed)
	}))

	fmt.Println("first: ", post(h, "alice", "k", "tea").Body)
	fmt.Println("again: ", post(h, "alice", "k", "tea").Body)
	fmt.Println("bob's: ", post(h, "bob", "k", "tea").Body)
	fmt.Println("other: ", post(h, "alice", "k", "coffee").Code)
	// Output:
	// first:  order 1
	// again:  order 1
	// bob's:  order 2
	// other:  422
}

// The payment provider is given a key of ours, which is the same in every attempt, so that it charges
// once as well. An attempt that fails is then safe to repeat: the guard is built WithRerun.
func Example_safeToRepeat() {
	orders, err := guard.New(memstore.New(), "checkout", guard.WithRerun())
	if err != nil {
		panic(err)
	}
	var charged []string
	h := idempotency.New(orders, nethttp.ScopeBy(nethttp.ByHeader("X-User")))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			attempt, _ := guard.FromContext(r.Context())
			charged = append(charged, attempt.OperationID())
			if len(charged) == 1 {
				http.Error(w, "the provider did not answer", http.StatusBadGateway)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}))

	fmt.Println(post(h, "alice", "k", "tea").Code, post(h, "alice", "k", "tea").Code, post(h, "alice", "k", "tea").Code)
	fmt.Println(len(charged), "charges, with one key:", charged[0] == charged[1])
	// Output:
	// 502 201 201
	// 2 charges, with one key: true
}

// Clients that do not read problems are told in their own words.
func ExampleDeny() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	deny := idempotency.Deny(func(w http.ResponseWriter, _ *http.Request, d policy.Denial) {
		w.WriteHeader(d.Status())
		_, _ = fmt.Fprintf(w, "<error code=%q/>", d.Reason)
	})
	h := idempotency.New(orders, nethttp.ScopeBy(nethttp.ByHeader("X-User")), deny)(http.NotFoundHandler())
	fmt.Println(post(h, "alice", "two keys, that is", "").Body)
	// Output: <error code="key-malformed"/>
}
