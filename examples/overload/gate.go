package main

import (
	"context"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
)

// The gate stands in front of everything else, so that a refusal costs nearly nothing. Its store is
// the process's own memory: it protects this process. The readiness probe passes, or else the load
// balancer takes the process away when it is busy, and its load goes to the others.
func behind(gate *semaphore.Semaphore, opts ...policy.ConcurrencyOption) func(http.Handler) http.Handler {
	opts = append(opts, policy.Overload(), nethttp.Unless(probes))
	return concurrency.New(gate, nethttp.Global(), opts...)
}

func probes(r *http.Request) bool { return r.URL.Path == "/ready" }

// tierOf is the server's decision, by what costs nothing to find out: the route. Orders are what
// the service lives on.
func tierOf(r *http.Request) policy.Tier {
	if r.URL.Path == searchPath {
		return policy.Low
	}
	return policy.Critical
}

// fixed has one bound for all requests.
func fixed(memory store.Leases, capacity int) (*semaphore.Semaphore, error) {
	return semaphore.New(memory, "gate", capacity)
}

// adaptive finds the bound by itself: as many as can be answered within target.
func adaptive(memory store.Leases, target time.Duration, floor, ceiling int) (*semaphore.Semaphore, error) {
	return semaphore.New(memory, "gate", floor, semaphore.WithAdaptiveCapacity(target, floor, ceiling))
}

// follow has a file set the bounds and the tiers while the service runs. The first load must
// succeed.
func follow(ctx context.Context, gate *semaphore.Semaphore, path string, changed func(rules.Applied)) (*rules.Rules, error) {
	return rules.Open(ctx, rules.File(path), rules.For(gate), rules.Every(200*time.Millisecond), rules.OnChange(changed))
}
