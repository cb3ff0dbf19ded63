package idempotency_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

type userKey struct{}

// byUser scopes by the authenticated user.
var byUser = nethttp.ScopeBy(nethttp.ByContext(userKey{}))

// post sends an order of an authenticated user.
func post(h http.Handler, user, key, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/checkout", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// An order that is sent again gets the first answer, for the same user alone. Another order needs
// another key.
func Example_checkout() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	placed := 0
	once := idempotency.New(orders, byUser, policy.Required())
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

// The payment provider gets a key that is the same in every attempt, so that it charges once. A
// failed attempt is then safe to repeat: the guard is built WithRerun.
func Example_safeToRepeat() {
	orders, err := guard.New(memstore.New(), "checkout", guard.WithRerun())
	if err != nil {
		panic(err)
	}
	var charged []string
	h := idempotency.New(orders, byUser)(http.HandlerFunc(
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

// An attempt that panicked after its effect leaves an operation of unknown outcome. An operator
// finds out that the order was placed, and says so; the client's next request has the order.
func ExampleAnswer() {
	ctx := context.Background()
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	h := idempotency.New(orders, byUser)(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	send := func() {
		defer func() {
			if recover() != nil {
				fmt.Println("the connection breaks")
			}
		}()
		w := post(h, "alice", "k", "tea")
		fmt.Println(w.Code, w.Header().Get("Content-Type"), w.Body)
	}
	send()
	for record, err := range orders.Unresolved(ctx) {
		if err != nil {
			panic(err)
		}
		answer := idempotency.Answer(http.StatusCreated, http.Header{"Content-Type": {"text/plain"}}, []byte("order 1"))
		if err := orders.Resolve(ctx, record, guard.Happened(answer), "carol", "the warehouse has the order"); err != nil {
			panic(err)
		}
	}
	send()
	// Output:
	// the connection breaks
	// 201 text/plain order 1
}

// A payment provider delivers an event until it is confirmed, each time with another timestamp in
// the body. The event's ID is the key, so each event is handled once. Events are remembered for as
// long as the provider delivers them again.
func ExampleKeyFrom_webhook() {
	events, err := guard.New(memstore.New(), "payments", guard.WithRetention(72*time.Hour))
	if err != nil {
		panic(err)
	}
	type event struct {
		ID     string `json:"id"`
		Amount int    `json:"amount"`
	}
	id := func(r *http.Request) (string, error) {
		var e event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
			return "", policy.ErrNoKey
		}
		return e.ID, nil
	}
	once := idempotency.New(events, nethttp.Unscoped(), // the provider is the only client: its signature has been checked
		idempotency.KeyFrom(id), policy.KeyAlone(), policy.Required())

	paid := 0
	h := once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var e event
		_ = json.NewDecoder(r.Body).Decode(&e) // the body is there again
		paid += e.Amount
		_, _ = fmt.Fprint(w, "paid ", paid)
	}))
	deliver := func(body string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/webhooks/payments", strings.NewReader(body)))
		fmt.Println(w.Code, w.Body)
	}
	deliver(`{"id": "evt_1", "amount": 450, "sent": "10:00:00"}`)
	deliver(`{"id": "evt_1", "amount": 450, "sent": "10:00:30"}`)
	deliver(`{"id": "evt_2", "amount": 50, "sent": "10:01:00"}`)
	// Output:
	// 200 paid 450
	// 200 paid 450
	// 200 paid 500
}

// The response to an order is lost. The transport sends the request again, with the same key, and
// gets it; the order is placed once.
func ExampleTransport() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	placed := 0
	shop := idempotency.New(orders, nethttp.Unscoped())(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		placed++
		_, _ = fmt.Fprint(w, "order ", placed)
	}))
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests == 1 {
			shop.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler) // the connection breaks
		}
		shop.ServeHTTP(w, r)
	}))
	defer server.Close()

	client := &http.Client{Transport: idempotency.Transport(nil)}
	resp, err := client.Post(server.URL+"/checkout", "text/plain", strings.NewReader("tea"))
	if err != nil {
		panic(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	fmt.Printf("%s, tries: %d, replayed: %v\n", body, idempotency.Tries(resp), idempotency.Replayed(resp))
	fmt.Println("placed:", placed)
	// Output:
	// order 1, tries: 2, replayed: true
	// placed: 1
}

// A job that runs again after a crash sends the same request with the same key: here the number of
// the invoice that it pays.
func ExampleWithKey() {
	payments, err := guard.New(memstore.New(), "payments")
	if err != nil {
		panic(err)
	}
	paid := 0
	server := httptest.NewServer(idempotency.New(payments, nethttp.Unscoped(), policy.Required())(http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			paid++
			_, _ = fmt.Fprint(w, "payment ", paid)
		})))
	defer server.Close()
	client := &http.Client{Transport: idempotency.Transport(nil)}

	pay := func(ctx context.Context, invoice string) {
		ctx = idempotency.WithKey(ctx, "invoice "+invoice)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/payments", strings.NewReader(invoice))
		if err != nil {
			panic(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			panic(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		fmt.Printf("%s: %s, replayed: %v\n", invoice, body, idempotency.Replayed(resp))
	}
	pay(context.Background(), "42")
	pay(context.Background(), "42")
	pay(context.Background(), "43")
	// Output:
	// 42: payment 1, replayed: false
	// 42: payment 1, replayed: true
	// 43: payment 2, replayed: false
}
