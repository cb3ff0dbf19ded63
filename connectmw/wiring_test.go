package connectmw_test

import (
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/fenced"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest/wiring"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
	"github.com/lockkeeper/lockkeeper/nethttp"
)

// Mistakes that the compiler cannot find panic when the program starts, not at a call.
func TestWiringMistakesPanic(t *testing.T) {
	store := rpctest.NewStore(t)
	limiter := rpctest.NewLimiter(t, store, tokenbucket.PerMinute(1))
	orders, carts, reports := rpctest.NewGuard(t, store), rpctest.NewLocker(t, store), rpctest.NewSemaphore(t, store, 1)
	anyKey, anyone := connectmw.Global(), connectmw.Unscoped()
	marks := must(memfence.New())
	var none *memfence.Fence
	unless := nethttp.Unless(func(*http.Request) bool { return false })

	wiring.Panics(t, map[string]func(){
		"ratelimit: New: nil limiter":       func() { ratelimit.New(nil, anyKey) },
		"ratelimit: New: nil key":           func() { ratelimit.New(limiter, nil) },
		"ratelimit: NewClient: nil limiter": func() { ratelimit.NewClient(nil, anyKey) },
		"ratelimit: NewClient: nil key":     func() { ratelimit.NewClient(limiter, nil) },
		"ratelimit: New: PerMessage with Costs or ChargeCodes, which settle a stream as a whole": func() {
			ratelimit.New(limiter, anyKey, ratelimit.PerMessage(), ratelimit.ChargeCodes(connect.CodeUnauthenticated))
		},
		"concurrency: Tiers: nil function":      func() { concurrency.Tiers(nil) },
		"ratelimit: Costs: nil function":        func() { ratelimit.Costs(nil) },
		"ratelimit: ChargeCodes: no codes":      func() { ratelimit.ChargeCodes() },
		"ratelimit: ChargeCodes: 17 is no code": func() { ratelimit.ChargeCodes(17) },
		"idempotency: New: policy.Retention (1s) is less than the lease of the guard (30s)": func() {
			idempotency.New(orders, anyone, policy.Retention(time.Second))
		},
		"idempotency: New: nil guard":            func() { idempotency.New(nil, anyone) },
		"idempotency: KeyFrom: nil key":          func() { idempotency.KeyFrom(nil) },
		"idempotency: Fingerprint: nil function": func() { idempotency.Fingerprint(nil) },
		"idempotency: New: Fingerprint has no effect with policy.KeyAlone": func() {
			idempotency.New(orders, anyone, policy.KeyAlone(), idempotency.Fingerprint(func(*connectmw.Call) ([]byte, error) { return nil, nil }))
		},
		"idempotency: KeepCodes: 17 is no code": func() { idempotency.KeepCodes(connect.CodeNotFound, 17) },
		"exclusive: New: nil locker":            func() { exclusive.New(nil, anyKey) },
		"exclusive: New: nil key":               func() { exclusive.New(carts, nil) },
		"concurrency: New: nil semaphore":       func() { concurrency.New(nil, anyKey) },
		"concurrency: New: nil key":             func() { concurrency.New(reports, nil) },
		"fenced: New: nil checker":              func() { fenced.New(none, anyKey) },
		"fenced: New: nil key":                  func() { fenced.New(marks, nil) },

		"idempotency: New: no scope; use connectmw.ScopeBy or connectmw.Unscoped": func() { idempotency.New(orders, connectmw.ScopeFunc{}) },
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

		"exclusive: New: an option of another framework (func(*http.Request) bool)":   func() { exclusive.New(carts, anyKey, unless) },
		"concurrency: New: an option of another framework (func(*http.Request) bool)": func() { concurrency.New(reports, anyKey, unless) },
		"fenced: New: an option of another framework (func(*http.Request) bool)":      func() { fenced.New(marks, anyKey, unless) },

		`ratelimit: New: policy.ProblemTypes: "/problems/" is a path, and gRPC needs a URL`: func() {
			ratelimit.New(limiter, anyKey, policy.ProblemTypes("/problems/"))
		},
		`idempotency: New: policy.ProblemTypes: "/problems#" is a path, and gRPC needs a URL`: func() {
			idempotency.New(orders, anyone, policy.ProblemTypes("/problems#"))
		},
		`exclusive: New: policy.ProblemTypes: "/" is a path, and gRPC needs a URL`: func() {
			exclusive.New(carts, anyKey, policy.ProblemTypes("/"))
		},
		`concurrency: New: policy.ProblemTypes: "/" is a path, and gRPC needs a URL`: func() {
			concurrency.New(reports, anyKey, policy.ProblemTypes("/"))
		},
		`fenced: New: policy.ProblemTypes: "/" is a path, and gRPC needs a URL`: func() {
			fenced.New(marks, anyKey, policy.ProblemTypes("/"))
		},

		"connectmw: Unless: nil function":  func() { connectmw.Unless(nil) },
		"connectmw: OnDeny: nil function":  func() { connectmw.OnDeny(nil) },
		"connectmw: OnError: nil function": func() { connectmw.OnError(nil) },
		"connectmw: Join: no keys":         func() { connectmw.Join() },
		"connectmw: FirstOf: nil key":      func() { connectmw.FirstOf(nil) },
		"connectmw: ScopeBy: nil key":      func() { connectmw.ScopeBy(nil) },
	})
}
