package nethttp_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/wiring"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// Mistakes that the compiler cannot find panic when the program starts, not at a request.
func TestWiringMistakesPanic(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	limiter := must(tokenbucket.New(store, "limit", tokenbucket.PerMinute(1000)))
	orders := must(guard.New(store, "orders"))
	carts := must(lock.New(store, "carts"))
	reports := must(semaphore.New(store, "reports", 10))
	marks := must(memfence.New())
	anyKey, anyone := nethttp.Global(), nethttp.Unscoped()
	type request struct{} // of another framework
	unless := httpmw.Unless("othermw", func(*request) bool { return false })
	onError := httpmw.OnError("othermw", func(*request, error) {})
	var none http.Handler

	wiring.Panics(t, map[string]func(){
		"ratelimit: New: nil limiter":                func() { ratelimit.New(nil, anyKey) },
		"ratelimit: New: nil key":                    func() { ratelimit.New(limiter, nil) },
		"ratelimit: Usage: nil limiter":              func() { ratelimit.Usage(nil, anyKey) },
		"ratelimit: Usage: nil key":                  func() { ratelimit.Usage(limiter, nil) },
		"ratelimit: Usage: Unless is for middleware": func() { ratelimit.Usage(limiter, anyKey, unless) },
		"ratelimit: New: nil handler":                func() { ratelimit.New(limiter, anyKey)(none) },
		"idempotency: New: nil guard":                func() { idempotency.New(nil, anyone) },
		"idempotency: New: policy.KeepHeaders: Set-Cookie is never kept": func() {
			idempotency.New(orders, anyone, policy.KeepHeaders("set-cookie"))
		},
		"idempotency: New: nil handler":   func() { idempotency.New(orders, anyone)(none) },
		"idempotency: KeyFrom: nil key":   func() { idempotency.KeyFrom(nil) },
		"exclusive: New: nil locker":      func() { exclusive.New(nil, anyKey) },
		"exclusive: New: nil key":         func() { exclusive.New(carts, nil) },
		"exclusive: New: nil handler":     func() { exclusive.New(carts, anyKey)(none) },
		"concurrency: New: nil semaphore": func() { concurrency.New(nil, anyKey) },
		"concurrency: New: nil key":       func() { concurrency.New(reports, nil) },
		"concurrency: New: nil handler":   func() { concurrency.New(reports, anyKey)(none) },
		"fenced: New: nil checker":        func() { fenced.New(nil, anyKey) },
		"fenced: New: nil key":            func() { fenced.New(marks, nil) },
		"fenced: New: nil handler":        func() { fenced.New(marks, anyKey)(none) },

		"idempotency: New: no scope; use nethttp.ScopeBy or nethttp.Unscoped": func() { idempotency.New(orders, nethttp.ScopeFunc{}) },
		"idempotency: New: policy.MaxWaiting has no effect without policy.Wait or policy.Dedupe": func() {
			idempotency.New(orders, anyone, policy.MaxWaiting(1))
		},
		"idempotency: New: policy.Dedupe has no effect with policy.Required": func() {
			idempotency.New(orders, anyone, policy.Dedupe(time.Second), policy.Required())
		},
		"idempotency: New: policy.Dedupe with policy.KeyAlone makes all requests to a path one": func() {
			idempotency.New(orders, anyone, policy.Dedupe(time.Second), policy.KeyAlone())
		},
		"exclusive: New: policy.MaxWaiting has no effect without policy.Wait": func() {
			exclusive.New(carts, anyKey, policy.MaxWaiting(1))
		},

		"ratelimit: New: an option of another framework (func(*nethttp_test.request) bool)":   func() { ratelimit.New(limiter, anyKey, unless) },
		"idempotency: New: an option of another framework (func(*nethttp_test.request) bool)": func() { idempotency.New(orders, anyone, unless) },
		"exclusive: New: an option of another framework (func(*nethttp_test.request) bool)":   func() { exclusive.New(carts, anyKey, unless) },
		"concurrency: New: an option of another framework (func(*nethttp_test.request) bool)": func() { concurrency.New(reports, anyKey, unless) },
		"fenced: New: an option of another framework (func(*nethttp_test.request) bool)":      func() { fenced.New(marks, anyKey, unless) },
		"exclusive: New: an option of another framework (func(*nethttp_test.request, error))": func() { exclusive.New(carts, anyKey, onError) },

		"ratelimit: Costs: nil function": func() { ratelimit.Costs(nil) },
		"ratelimit: New: an option of another framework (func(*nethttp_test.request) tokenbucket.Cost)": func() {
			ratelimit.New(limiter, anyKey, httpmw.Costs(func(*request) tokenbucket.Cost { return nil }))
		},
		"concurrency: Tiers: nil function": func() { concurrency.Tiers(nil) },
		"concurrency: New: an option of another framework (func(*nethttp_test.request) semaphore.Tier)": func() {
			concurrency.New(reports, anyKey, httpmw.Tiers(func(*request) policy.Tier { return policy.Low }))
		},
		"nethttp: Unless: nil function":  func() { nethttp.Unless(nil) },
		"nethttp: OnDeny: nil function":  func() { nethttp.OnDeny(nil) },
		"nethttp: OnError: nil function": func() { nethttp.OnError(nil) },
		"nethttp: Join: no keys":         func() { nethttp.Join() },
		"nethttp: Join: nil key":         func() { nethttp.Join(anyKey, nil) },
		"nethttp: FirstOf: nil key":      func() { nethttp.FirstOf(nil) },
		"nethttp: ScopeBy: nil key":      func() { nethttp.ScopeBy(nil) },
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
