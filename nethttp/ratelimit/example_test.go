package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

var hello200 = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") })

// getAs sends a request of a tenant, without authentication.
func getAs(h http.Handler, tenant string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
	return w
}

type tenantKey struct{}

// Each tenant has its own tokens.
func Example_perTenant() {
	limiter, err := tokenbucket.New(memstore.New(), "tenant", tokenbucket.PerMinute(100).Burst(2))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByContext(tenantKey{}))(hello200)

	fmt.Println(getAs(h, "acme").Code, getAs(h, "acme").Code, getAs(h, "acme").Code)
	fmt.Println(getAs(h, "zenith").Code)
	// Output:
	// 200 200 429
	// 200
}

// Each tenant has the limit of its plan, which is looked up for each request, so that an upgrade
// applies at once.
func Example_tiers() {
	plan := func(_ context.Context, tenant string) (tokenbucket.Plan, error) {
		if tenant == "acme" {
			return tokenbucket.PerSecond(100).Named("gold"), nil
		}
		return tokenbucket.PerSecond(5).Named("free"), nil
	}
	limiter, err := tokenbucket.New(memstore.New(), "tier", tokenbucket.PlanFunc(plan))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByContext(tenantKey{}))(hello200)

	fmt.Println(getAs(h, "acme").Header().Get("RateLimit-Policy"))
	fmt.Println(getAs(h, "zenith").Header().Get("RateLimit-Policy"))
	// Output:
	// "gold";q=100;w=1
	// "free";q=5;w=1
}

// A limit that lets all requests pass during an outage.
func Example_failOpen() {
	store := storetest.NewFaulty(memstore.New())
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()), policy.FailOpen())(hello200)

	store.Break(storetest.Any, storetest.Down) // an outage
	fmt.Println(getAs(h, "acme").Code)
	// Output: 200
}

// A client of a provider that gives each tenant a quota of its own. When the provider refuses one
// tenant, no process of ours calls it for that tenant until the provider's time is over.
func ExampleTransport() {
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Tenant") == "acme" {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer provider.Close()
	limiter, err := tokenbucket.New(memstore.New(), "provider", tokenbucket.PerSecond(10)) // in production, on Redis
	if err != nil {
		panic(err)
	}
	byTenant := nethttp.Join(ratelimit.ByHost(), nethttp.ByContext(tenantKey{}))
	client := &http.Client{Transport: ratelimit.Transport(nil, limiter, byTenant)}
	defer client.CloseIdleConnections()

	get := func(tenant string) {
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), tenantKey{}, tenant), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, provider.URL, nil)
		if err != nil {
			panic(err)
		}
		r.Header.Set("X-Tenant", tenant)
		resp, err := client.Do(r)
		if err != nil {
			fmt.Println(tenant, "not sent:", errors.Is(err, ratelimit.ErrNotSent), "too late:", errors.Is(err, context.DeadlineExceeded))
			return
		}
		_ = resp.Body.Close()
		fmt.Println(tenant, resp.StatusCode)
	}
	get("acme")
	get("acme")
	get("zenith")
	// Output:
	// acme 429
	// acme not sent: true too late: true
	// zenith 200
}

// A provider that says in a field of its own how many calls are left of forty, of which it gives
// back two a second.
func ExampleDecoders() {
	shopify := func(resp *http.Response) time.Duration {
		var used, most int
		if _, err := fmt.Sscanf(resp.Header.Get("X-Shopify-Shop-Api-Call-Limit"), "%d/%d", &used, &most); err != nil || used < most {
			return 0
		}
		return time.Second / 2
	}
	limiter, err := tokenbucket.New(memstore.New(), "shopify", tokenbucket.PerSecond(2).Burst(40))
	if err != nil {
		panic(err)
	}
	full := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Shopify-Shop-Api-Call-Limit", "40/40")
	}))
	defer full.Close()
	client := &http.Client{Transport: ratelimit.Transport(nil, limiter, ratelimit.ByHost(), ratelimit.Decoders(ratelimit.Standard, shopify))}
	defer client.CloseIdleConnections()

	began := time.Now()
	for range 2 {
		resp, err := client.Get(full.URL)
		if err != nil {
			panic(err)
		}
		_ = resp.Body.Close()
	}
	fmt.Println("the second call waits:", time.Since(began) >= time.Second/2)
	// Output: the second call waits: true
}

// A client asks how much of its limit is left, which costs nothing.
func ExampleUsage() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(3))
	if err != nil {
		panic(err)
	}
	byTenant := nethttp.ByContext(tenantKey{})
	h, usage := ratelimit.New(limiter, byTenant)(hello200), ratelimit.Usage(limiter, byTenant)

	getAs(h, "acme")
	fmt.Print(getAs(usage, "acme").Body)
	fmt.Print(getAs(usage, "acme").Body)
	// Output:
	// {"limits":[{"name":"api","capacity":3,"window":3600,"remaining":2,"reset":1200}]}
	// {"limits":[{"name":"api","capacity":3,"window":3600,"remaining":2,"reset":1200}]}
}

// A limit is tried out: it denies no request, and counts the ones that it would have denied.
func Example_shadow() {
	limiter, err := tokenbucket.New(memstore.New(), "trial", tokenbucket.PerMinute(1))
	if err != nil {
		panic(err)
	}
	h := ratelimit.New(limiter, nethttp.ByContext(tenantKey{}), policy.Shadow())(hello200)

	fmt.Println(getAs(h, "acme").Code, getAs(h, "acme").Code)
	// Output: 200 200
}

// A request costs the tokens of its answer, which are known when that has ended. Until then an
// estimate is reserved.
func ExampleCosts() {
	limiter, err := tokenbucket.New(memstore.New(), "llm", tokenbucket.Limits{
		tokenbucket.PerDay(1_000).Named("requests"), tokenbucket.PerDay(90_000).Named("tokens"),
	})
	if err != nil {
		panic(err)
	}
	estimate := func(r *http.Request) tokenbucket.Cost {
		return tokenbucket.Cost{"requests": 1, "tokens": 2_000 + r.ContentLength/4}
	}
	complete := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reservation, reserved := tokenbucket.FromContext(r.Context())
		for n, word := range []string{"Never ", "twice."} {
			_, _ = fmt.Fprint(w, word) // a stream, which the client may leave at any time
			_ = http.NewResponseController(w).Flush()
			if reserved {
				_ = reservation.Use("tokens", int64(n+1)*40)
			}
		}
	})
	h := ratelimit.New(limiter, nethttp.ByContext(tenantKey{}), ratelimit.Costs(estimate))(complete)

	fmt.Println(getAs(h, "acme").Body)
	d, err := limiter.Peek(context.Background(), "acme")
	if err != nil {
		panic(err)
	}
	for _, l := range d.Limits() {
		fmt.Println(l.Capacity-l.Remaining, l.Name)
	}
	// Output:
	// Never twice.
	// 1 requests
	// 80 tokens
}

// Attempts to log in count only if they fail. An address that fails too often with an account is
// held, for longer each time. With the account alone as the key, anybody could lock its owner out;
// examples/login has limits of the account and of the address, too.
func Example_logins() {
	limiter, err := tokenbucket.New(memstore.New(), "login", tokenbucket.PerHour(2))
	if err != nil {
		panic(err)
	}
	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("password") != "correct horse" {
			http.Error(w, "wrong password", http.StatusUnauthorized)
		}
	})
	account := nethttp.KeyFunc(func(r *http.Request) (string, error) { // all spellings are one
		return strings.ToLower(strings.TrimSpace(r.PostFormValue("account"))), nil
	})
	h := ratelimit.New(limiter, nethttp.Join(account, nethttp.ByClientIP(clientip.Direct())),
		policy.ChargeStatus(http.StatusUnauthorized),
		policy.Hold(tokenbucket.Escalate(15*time.Minute, 2, 24*time.Hour)),
	)(login)

	attempt := func(from, account, password string) int {
		form := url.Values{"account": {account}, "password": {password}}
		r := httptest.NewRequest(http.MethodPost, "/login", strings.NewReader(form.Encode()))
		r.RemoteAddr = from + ":1234"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	const owner, thief = "192.0.2.1", "198.51.100.1"
	fmt.Println(attempt(owner, "alice", "correct horse"), attempt(owner, "alice", "correct horse"), attempt(owner, "alice", "correct horse"))
	fmt.Println(attempt(thief, "alice", "guess"), attempt(thief, "Alice", "guess"), attempt(thief, "ALICE", "guess"))
	fmt.Println(attempt(thief, "alice", "correct horse"), attempt(owner, "alice", "correct horse"))
	// Output:
	// 200 200 200
	// 401 401 429
	// 429 200
}
