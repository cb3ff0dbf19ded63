package guides_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// An attempt whose handler panicked is resolved by an operator. The client sends its request again, and
// gets the answer.
func Example_resolve() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	orders, err := guard.New(store, "orders")
	if err != nil {
		panic(err)
	}
	breaks := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	server := httptest.NewServer(idempotency.New(orders, nethttp.Unscoped())(breaks))
	defer server.Close()
	send := func() {
		client := &http.Client{Transport: idempotency.Transport(nil, idempotency.WithMaxTries(1))}
		defer client.CloseIdleConnections()
		r, err := http.NewRequestWithContext(idempotency.WithKey(ctx, "k1"), http.MethodPost, server.URL, strings.NewReader("tea"))
		if err != nil {
			panic(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			fmt.Println("the connection breaks")
			return
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		fmt.Println(resp.Status, string(text), err)
	}

	send()
	body := []byte(`{"order": 42}`)
	for record, err := range orders.Unresolved(ctx) {
		if err != nil {
			panic(err)
		}
		answer := idempotency.Answer(http.StatusCreated, http.Header{"Content-Type": {"application/json"}}, body)
		err := orders.Resolve(ctx, record, guard.Happened(answer), "on-call", "charge ch_42 found")
		fmt.Println("resolved:", err)
	}
	send()
	// Output:
	// the connection breaks
	// resolved: <nil>
	// 201 Created {"order": 42} <nil>
}
