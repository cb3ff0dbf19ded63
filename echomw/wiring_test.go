package echomw_test

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
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/concurrency"
	"github.com/lockkeeper/lockkeeper/echomw/exclusive"
	"github.com/lockkeeper/lockkeeper/echomw/fenced"
	"github.com/lockkeeper/lockkeeper/echomw/idempotency"
	"github.com/lockkeeper/lockkeeper/echomw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/wiring"
	"github.com/lockkeeper/lockkeeper/nethttp"
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
	anyKey, anyone := echomw.Global(), echomw.Unscoped()
	unless := nethttp.Unless(func(*http.Request) bool { return false })
	onError := nethttp.OnError(func(*http.Request, error) {})

	wiring.Panics(t, map[string]func(){
		"ratelimit: New: nil limiter":                func() { ratelimit.New(nil, anyKey) },
		"ratelimit: New: nil key":                    func() { ratelimit.New(limiter, nil) },
		"ratelimit: Usage: nil limiter":              func() { ratelimit.Usage(nil, anyKey) },
		"ratelimit: Usage: nil key":                  func() { ratelimit.Usage(limiter, nil) },
		"ratelimit: Usage: Unless is for middleware": func() { ratelimit.Usage(limiter, anyKey, unless) },
		"idempotency: New: nil guard":                func() { idempotency.New(nil, anyone) },
		"idempotency: KeyFrom: nil key":              func() { idempotency.KeyFrom(nil) },
		"exclusive: New: nil locker":                 func() { exclusive.New(nil, anyKey) },
		"exclusive: New: nil key":                    func() { exclusive.New(carts, nil) },
		"concurrency: New: nil semaphore":            func() { concurrency.New(nil, anyKey) },
		"concurrency: New: nil key":                  func() { concurrency.New(reports, nil) },
		"fenced: New: nil checker":                   func() { fenced.New(nil, anyKey) },
		"fenced: New: nil key":                       func() { fenced.New(marks, nil) },

		"idempotency: New: no scope; use echomw.ScopeBy or echomw.Unscoped": func() { idempotency.New(orders, echomw.ScopeFunc{}) },
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

		"ratelimit: New: an option of another framework (func(*http.Request) bool)":   func() { ratelimit.New(limiter, anyKey, unless) },
		"idempotency: New: an option of another framework (func(*http.Request) bool)": func() { idempotency.New(orders, anyone, unless) },
		"exclusive: New: an option of another framework (func(*http.Request) bool)":   func() { exclusive.New(carts, anyKey, unless) },
		"concurrency: New: an option of another framework (func(*http.Request) bool)": func() { concurrency.New(reports, anyKey, unless) },
		"fenced: New: an option of another framework (func(*http.Request) bool)":      func() { fenced.New(marks, anyKey, unless) },
		"exclusive: New: an option of another framework (func(*http.Request, error))": func() { exclusive.New(carts, anyKey, onError) },

		"echomw: Unless: nil function":  func() { echomw.Unless(nil) },
		"echomw: OnDeny: nil function":  func() { echomw.OnDeny(nil) },
		"echomw: OnError: nil function": func() { echomw.OnError(nil) },
		"echomw: Join: no keys":         func() { echomw.Join() },
		"echomw: Join: nil key":         func() { echomw.Join(anyKey, nil) },
		"echomw: FirstOf: nil key":      func() { echomw.FirstOf(nil) },
		"echomw: ScopeBy: nil key":      func() { echomw.ScopeBy(nil) },
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
