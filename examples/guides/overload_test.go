package guides_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
)

// behindGate returns a service behind a gate for as many requests as it can answer in time.
func behindGate(memory store.Leases, service http.Handler) (http.Handler, error) {
	gate, err := semaphore.New(memory, "gate", 100) // 500 a second × 0.2 s
	if err != nil {
		return nil, err
	}
	bounded := concurrency.New(gate, nethttp.Global(), policy.Overload(),
		concurrency.Tiers(tierOf), nethttp.Unless(isProbe))
	return bounded(authenticated(service)), nil
}

// isProbe has the probes pass: a process that is busy is ready.
func isProbe(r *http.Request) bool { return r.URL.Path == "/readyz" || r.URL.Path == "/healthz" }

// tierOf is what the route is worth to the service, or less if the client says so.
func tierOf(r *http.Request) policy.Tier {
	return max(worth(r), wish(r)) // a lower tier is a larger value
}

func worth(r *http.Request) policy.Tier {
	switch {
	case r.Method == http.MethodPost && r.URL.Path == "/orders":
		return policy.Critical
	case r.URL.Path == "/recommendations":
		return policy.Low
	}
	return policy.Normal
}

func wish(r *http.Request) policy.Tier {
	switch r.Header.Get("X-Tier") {
	case "low":
		return policy.Low
	case "background":
		return policy.Background
	}
	return policy.Critical // no wish, or one that could only raise the tier
}

// Probes pass a gate that is full; a wish lowers a tier, and does not raise one.
func TestGateTiers(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	gate := must(semaphore.New(st, "gate", 100))
	h := must(behindGate(st, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	get := func(method, path, wish string) int {
		r := httptest.NewRequest(method, path, http.NoBody)
		r.Header.Set("X-User", "alice")
		r.Header.Set("X-Tier", wish)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, row := range []struct {
		used         int
		method, path string
		wish         string
		want         int
	}{
		{69, http.MethodGet, "/recommendations", "", 200},
		{70, http.MethodGet, "/recommendations", "critical", 503},
		{70, http.MethodGet, "/items", "", 200},
		{70, http.MethodGet, "/items", "low", 503},
		{90, http.MethodGet, "/items", "", 503},
		{90, http.MethodPost, "/orders", "", 200},
		{90, http.MethodPost, "/orders", "background", 503},
		{100, http.MethodPost, "/orders", "", 503},
		{100, http.MethodGet, "/readyz", "", 200},
	} {
		idle := must(gate.AcquireN(t.Context(), "global", 100)) // answers do not wait for releases
		if err := idle.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		permit := must(gate.TryAcquireN(t.Context(), "global", row.used))
		if got := get(row.method, row.path, row.wish); got != row.want {
			t.Errorf("%d in use: %s %s of wish %q: status %d, want %d", row.used, row.method, row.path, row.wish, got, row.want)
		}
		if err := permit.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// adaptingGate has the capacity that answers within target allow.
func adaptingGate(memory store.Leases, target time.Duration, floor, ceiling int) (*semaphore.Semaphore, error) {
	return semaphore.New(memory, "gate", floor, semaphore.WithAdaptiveCapacity(target, floor, ceiling))
}

func Example_adaptingGate() {
	st := memstore.New()
	defer st.Close()
	gate := must(adaptingGate(st, 200*time.Millisecond, 50, 1000))
	fmt.Println(gate.Capacity("global"))
	// Output: 50 <nil>
}

// errNoQuote is what a caller of quote makes do with.
var errNoQuote = errors.New("no quote")

// quote asks a provider. At most so many calls run at once as the semaphore has permits, and each
// ends with its deadline.
func quote(ctx context.Context, calls *semaphore.Semaphore, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	permit, err := calls.TryAcquire(ctx, "quotes")
	if errors.Is(err, semaphore.ErrNotAcquired) {
		return errNoQuote // the fallback
	}
	if err != nil {
		return err
	}
	return errors.Join(ask(permit.Context()), permit.Release(ctx))
}

func TestQuote(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	calls := must(semaphore.New(st, "provider", 1))
	err := quote(t.Context(), calls, func(ctx context.Context) error {
		if _, cut := ctx.Deadline(); !cut {
			t.Error("the call has no deadline")
		}
		return quote(ctx, calls, nil) // no permit is left
	})
	if !errors.Is(err, errNoQuote) {
		t.Error(err)
	}
	if err := quote(t.Context(), calls, func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}
