package fibermw_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/concurrency"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
	"github.com/lockkeeper/lockkeeper/fibermw/fenced"
	"github.com/lockkeeper/lockkeeper/fibermw/idempotency"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/wiring"
	"github.com/lockkeeper/lockkeeper/nethttp"
)

// Mistakes that the compiler cannot find panic when the program starts, not at a request.
func TestWiringMistakesPanic(t *testing.T) {
	st := newStore(t)
	limiter := must(tokenbucket.New(st, "limit", tokenbucket.PerMinute(1000)))
	orders := must(guard.New(st, "orders"))
	carts := must(lock.New(st, "carts"))
	reports := must(semaphore.New(st, "reports", 10))
	marks := must(memfence.New())
	anyKey, anyone := fibermw.Global(), fibermw.Unscoped()
	unless := nethttp.Unless(func(*http.Request) bool { return false })
	onError := nethttp.OnError(func(*http.Request, error) {})
	noFingerprint := policy.Fingerprint(func(*http.Request, []byte) ([]byte, error) { return nil, nil })
	var none *memfence.Fence

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
		"fenced: New: nil checker":                   func() { fenced.New(none, anyKey) },
		"fenced: New: nil key":                       func() { fenced.New(marks, nil) },

		"idempotency: New: no scope; use fibermw.ScopeBy or fibermw.Unscoped": func() { idempotency.New(orders, fibermw.ScopeFunc{}) },
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
		"idempotency: New: policy.MaxBodies (9) is less than one request may take (10)": func() {
			idempotency.New(orders, anyone, policy.MaxBody(10), policy.MaxBodies(9))
		},
		"idempotency: New: policy.MaxBodies (19) is less than one request may take (20)": func() {
			idempotency.New(orders, anyone, policy.MaxBody(10), policy.MaxBodies(19), noFingerprint)
		},
		"idempotency: New: policy.Fingerprint has no effect with policy.KeyAlone": func() {
			idempotency.New(orders, anyone, noFingerprint, policy.KeyAlone())
		},

		"ratelimit: New: an option of another framework (func(*http.Request) bool)":   func() { ratelimit.New(limiter, anyKey, unless) },
		"idempotency: New: an option of another framework (func(*http.Request) bool)": func() { idempotency.New(orders, anyone, unless) },
		"exclusive: New: an option of another framework (func(*http.Request) bool)":   func() { exclusive.New(carts, anyKey, unless) },
		"concurrency: New: an option of another framework (func(*http.Request) bool)": func() { concurrency.New(reports, anyKey, unless) },
		"fenced: New: an option of another framework (func(*http.Request) bool)":      func() { fenced.New(marks, anyKey, unless) },
		"exclusive: New: an option of another framework (func(*http.Request, error))": func() { exclusive.New(carts, anyKey, onError) },

		"fibermw: Unless: nil function": func() { fibermw.Unless(nil) },
		"fibermw: OnDeny: nil function": func() { fibermw.OnDeny(nil) },
		"fibermw: Join: no keys":        func() { fibermw.Join() },
		"fibermw: FirstOf: nil key":     func() { fibermw.FirstOf(nil) },
		"fibermw: ScopeBy: nil key":     func() { fibermw.ScopeBy(nil) },
	})
}
