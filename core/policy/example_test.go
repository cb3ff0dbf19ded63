package policy_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// userKey is the key under which authentication puts the verified user into the request's context.
type userKey struct{}

// get sends a request of an authenticated user, or of none if user is empty.
func get(h http.Handler, user string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	if user != "" {
		r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var (
	hello  = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	silent = policy.Logger(slog.New(slog.DiscardHandler))
)

// During an outage a limit refuses requests, or lets them pass. A store that is misconfigured is not
// down: its requests are refused either way.
func ExampleFailOpen() {
	store := storetest.NewFaulty(memstore.New())
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	byUser := nethttp.ByContext(userKey{})
	closed := ratelimit.New(limiter, byUser, silent)(hello)
	open := ratelimit.New(limiter, byUser, silent, policy.FailOpen())(hello)

	store.Break(storetest.Any, storetest.Down)
	fmt.Println("down:         ", get(closed, "alice").Code, get(open, "alice").Code)
	store.Break(storetest.Any, storetest.Misconfigured)
	fmt.Println("misconfigured:", get(closed, "alice").Code, get(open, "alice").Code)
	// Output:
	// down:          503 200
	// misconfigured: 503 503
}

// Requests that run without their lock say so in their answer.
func ExampleRunUnprotected() {
	store := storetest.NewFaulty(memstore.New())
	profiles, err := lock.New(store, "profiles")
	if err != nil {
		panic(err)
	}
	h := exclusive.New(profiles, nethttp.ByContext(userKey{}), silent, policy.RunUnprotected())(hello)

	store.Break(storetest.Any, storetest.Down)
	answer := get(h, "alice")
	fmt.Println(answer.Code, answer.Header().Get("Lock-Status"))
	// Output: 200 bypassed
}

// A key function of your own tells the client's mistakes from the application's: the first are 400,
// the second are 500, and are logged. A key that the client does not send must never be a constant,
// by which all such clients would share one limit.
func ExampleErrNoKey() {
	byDevice := func(r *http.Request) (string, error) {
		user, ok := r.Context().Value(userKey{}).(string)
		if !ok {
			return "", fmt.Errorf("%w: authentication is behind the limit", policy.ErrNotProvided)
		}
		device := r.URL.Query().Get("device")
		if device == "" {
			return "", policy.ErrNoKey
		}
		return user + " " + device, nil
	}
	limiter, err := tokenbucket.New(memstore.New(), "devices", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, byDevice, silent)(hello)
	fmt.Println(get(h, "alice").Code, get(h, "").Code)
	// Output: 400 500
}

// A refusal as a problem, with a type on a page of the application's own.
func ExampleDenial() {
	d := policy.Denial{Reason: policy.Locked, RetryAfter: 2 * time.Second, TypeBase: "https://shop.example/problems#"}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
	// Output:
	// {
	//   "type": "https://shop.example/problems#locked",
	//   "title": "Another request is working on the same resource",
	//   "status": 409
	// }
}
