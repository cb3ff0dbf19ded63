package fenced_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
)

func put(h http.Handler, path, token string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPut, path, nil)
	if token != "" {
		r.Header.Set(fence.Header, token)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// The request of a paused holder arrives after the next holder has written. The handler gets the
// fence, so that the database can compare it again.
func Example_lateRequest() {
	accounts, err := memfence.New() // redisfence, where several processes work on the accounts
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", fenced.New(accounts, nethttp.ByPathValue("id"))(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			token, _ := fence.FromContext(r.Context())
			// UPDATE accounts SET ..., fence = $1 WHERE id = $2 AND fence <= $1
			_, _ = fmt.Fprintf(w, "account %s, written with fence %v", r.PathValue("id"), token)
		})))
	fmt.Println(put(mux, "/accounts/7", "34").Body)
	fmt.Println("the paused holder:", put(mux, "/accounts/7", "33").Code)
	fmt.Println("without a lock:", put(mux, "/accounts/7", "").Code)
	// Output:
	// account 7, written with fence 34
	// the paused holder: 412
	// without a lock: 428
}

// A client whose requests carry the fence of the lock that they are sent under.
func ExampleTransport() {
	accounts, err := memfence.New()
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(fenced.New(accounts, nethttp.Global())(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })))
	defer server.Close()

	locks, err := lock.New(memstore.New(), "accounts")
	if err != nil {
		panic(err)
	}
	client := &http.Client{Transport: fenced.Transport(nil)}
	send := func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		fmt.Println(resp.Status)
		return resp.Body.Close()
	}
	fmt.Println(locks.Do(context.Background(), "7", send)) // the context is that of a lease
	fmt.Println(send(context.Background()))                // and this one is not
	client.CloseIdleConnections()
	// Output:
	// 204 No Content
	// <nil>
	// 428 Precondition Required
	// <nil>
}
