package guides_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/problems"
)

// A refusal leads its client to a page of the shop's own.
func Example_problemTypes() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	type userKey struct{} // of the authenticated user
	byUser := nethttp.ScopeBy(nethttp.ByContext(userKey{}))
	checkout := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })

	const types = "https://shop.example/problems/"

	mux := http.NewServeMux()
	mux.Handle("GET /problems/", problems.Handler(types))
	mux.Handle("POST /checkout", idempotency.New(orders, byUser, policy.Required(), policy.ProblemTypes(types))(checkout))

	alice := context.WithValue(context.Background(), userKey{}, "alice")
	refused := httptest.NewRecorder() // since it has no Idempotency-Key
	mux.ServeHTTP(refused, httptest.NewRequestWithContext(alice, http.MethodPost, "/checkout", strings.NewReader("tea")))
	fmt.Println(refused.Code, refused.Header().Get("Link"))

	page := httptest.NewRecorder()
	mux.ServeHTTP(page, httptest.NewRequest(http.MethodGet, "https://shop.example/problems/key-missing", nil))
	title, _, _ := strings.Cut(page.Body.String(), "\n")
	fmt.Println(page.Code, title)
	// Output:
	// 400 <https://shop.example/problems/key-missing>; rel="describedby"
	// 200 The request lacks a key that it needs
}
