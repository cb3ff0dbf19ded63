// Command nethttp is a shop on net/http behind all four policies, in the order in which they belong.
// This file is the part to copy; serve.go runs it.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

func newShop(st store.Store) http.Handler {
	requests := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100).Burst(20)))
	orders := must(guard.New(st, "checkout"))
	carts := must(lock.New(st, "carts"))
	writes := must(semaphore.New(st, "writes", 2))

	user, cart := nethttp.ByContext(userKey{}), nethttp.ByPathValue("id")
	report := nethttp.OnError(func(r *http.Request, err error) { log.Println(r.Method, r.URL.Path, err) })
	limit := ratelimit.New(requests, nethttp.ByClientIP(clientip.Direct()), report)
	once := idempotency.New(orders, nethttp.ScopeBy(user), policy.Required(), report)
	oneAtATime := exclusive.New(carts, nethttp.Join(user, cart), policy.Wait(time.Second), report)
	twoAtATime := concurrency.New(writes, nethttp.Global(), report)

	mux := http.NewServeMux()
	mux.Handle("PUT /carts/{id}", oneAtATime(twoAtATime(http.HandlerFunc(fill))))
	mux.Handle("POST /carts/{id}/checkout", once(oneAtATime(twoAtATime(http.HandlerFunc(checkout)))))
	return limit(authenticate(mux))
}

type userKey struct{}

// authenticate stands in for real authentication: it believes the header X-User.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := r.Header.Get("X-User")
		if user == "" {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

func fill(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body) // yours goes here
	if err != nil {
		http.Error(w, "the cart broke off", http.StatusBadRequest)
		return
	}
	_, _ = fmt.Fprintf(w, "%d bytes in cart %s\n", n, r.PathValue("id"))
}

func checkout(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintln(w, "order", rand.Text()) // yours goes here, and charges
}
