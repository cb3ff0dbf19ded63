// Command nethttp is the program of the README on net/http.
package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

func main() {
	store := memstore.New() // or redisstore.New(client)
	defer store.Close()
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100).Burst(20))
	if err != nil {
		panic(err)
	}
	orders, err := guard.New(store, "checkout")
	if err != nil {
		panic(err)
	}

	limit := ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct())) // behind a proxy: clientip.TrustedProxies
	once := idempotency.New(orders, nethttp.ScopeBy(nethttp.ByContext(userKey{})), policy.Required())
	mux := http.NewServeMux()
	mux.Handle("POST /checkout", once(http.HandlerFunc(checkout)))
	if err := http.ListenAndServe("127.0.0.1:8080", limit(authenticate(mux))); err != nil {
		panic(err)
	}
}

type userKey struct{}

func authenticate(next http.Handler) http.Handler { // yours goes here
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, "customer-1")))
	})
}

func checkout(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintln(w, `{"order":1}`)
}
