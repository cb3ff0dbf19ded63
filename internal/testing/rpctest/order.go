package rpctest

import (
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// Mistakes in the order of interceptors are logged once, and an order that cannot work is refused.
func order(t *rig) {
	for name, c := range map[string]struct {
		chain  func(st store.Records, orders Interceptor, log policy.Option) []Interceptor
		logged string
		refuse bool
	}{
		"the same guard twice": {func(_ store.Records, orders Interceptor, _ policy.Option) []Interceptor {
			return []Interceptor{orders, orders}
		}, "twice", true},
		"the same limit twice": {func(st store.Records, _ Interceptor, log policy.Option) []Interceptor {
			limit := t.RateLimit(must(tokenbucket.New(st.(store.Buckets), "api", tokenbucket.PerMinute(100))), t.ByField("id"), log)
			return []Interceptor{limit, limit}
		}, "twice", true},
		"the same semaphore twice": {func(st store.Records, _ Interceptor, log policy.Option) []Interceptor {
			permit := t.Concurrency(NewSemaphore(t, st.(store.Leases), 10), t.ByField("id"), log)
			return []Interceptor{permit, permit}
		}, "twice", true},
		"two guards": {func(st store.Records, orders Interceptor, log policy.Option) []Interceptor {
			return []Interceptor{orders, t.Idempotency(must(guard.New(st, "payments")), byUser(t), log)}
		}, "two guards", false},
		"a lock in front": {func(_ store.Records, orders Interceptor, _ policy.Option) []Interceptor {
			return []Interceptor{t.Exclusive(NewLocker(t, newStore(t)), t.ByField("id")), orders}
		}, "in front of idempotency", false},
		"a permit in front": {func(_ store.Records, orders Interceptor, _ policy.Option) []Interceptor {
			return []Interceptor{t.Concurrency(NewSemaphore(t, newStore(t), 10), t.ByField("id")), orders}
		}, "in front of idempotency", false},
		"the right order": {func(_ store.Records, orders Interceptor, _ policy.Option) []Interceptor {
			return []Interceptor{
				orders, t.Exclusive(NewLocker(t, newStore(t)), t.ByField("id")), t.Concurrency(NewSemaphore(t, newStore(t), 10), t.ByField("id")),
			}
		}, "", false},
	} {
		t.Run(name, func(t *rig) {
			var j mwtest.Journal
			var s Service
			st, log := newStore(t), policy.Logger(j.Logger())
			client := serve(t, &s, c.chain(st, t.Idempotency(NewGuard(t, st), byUser(t), log), log)...)
			for n := range 3 {
				for range 2 {
					thing, err := client.Make(with(t, "x-user", "u", "idempotency-key", strconv.Itoa(n)), &Request{ID: "1"})
					if c.refuse {
						denies(t, err, policy.InternalError)
					} else {
						is(t, thing, err, "run "+strconv.Itoa(n+1))
					}
				}
			}
			logged := j.Records(t)
			if c.logged == "" && len(logged) == 0 {
				return
			}
			if len(logged) != 1 || !strings.Contains(logged[0]["msg"].(string), c.logged) {
				t.Errorf("logged %v, want once %q", logged, c.logged)
			}
		})
	}
}
