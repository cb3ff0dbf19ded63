package exclusive_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
)

func put(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPut, path, nil))
	return w
}

// Requests for the same account run one after the other, and wait for up to two seconds. The
// database refuses a write with an older fence: that of a handler that was paused and has lost its
// lock.
func Example_waitForTheTurn() {
	accounts, err := lock.New(memstore.New(), "accounts")
	if err != nil {
		panic(err)
	}
	oneAtATime := exclusive.New(accounts, nethttp.ByPathValue("id"), policy.Wait(2*time.Second))
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", oneAtATime(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lease, _ := lock.FromContext(r.Context())
		// UPDATE accounts SET ..., fence = $1 WHERE id = $2 AND fence <= $1
		_, _ = fmt.Fprintf(w, "account %s, with a fence: %t", r.PathValue("id"), lease.Fence().Number > 0)
	})))
	fmt.Println(put(mux, "/accounts/7").Body)
	// Output: account 7, with a fence: true
}

// A nightly job takes the same lock, and excludes requests for its account.
func Example_sharedWithAJob() {
	accounts, err := lock.New(memstore.New(), "accounts")
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", exclusive.New(accounts, nethttp.ByPathValue("id"))(http.HandlerFunc(
		func(http.ResponseWriter, *http.Request) {})))

	err = accounts.Do(context.Background(), "7", func(context.Context) error {
		fmt.Println("account 7, during the job:", put(mux, "/accounts/7").Code)
		fmt.Println("account 8, during the job:", put(mux, "/accounts/8").Code)
		return nil
	})
	fmt.Println("account 7, after the job:", put(mux, "/accounts/7").Code, err)
	// Output:
	// account 7, during the job: 409
	// account 8, during the job: 200
	// account 7, after the job: 200 <nil>
}
