package grpcmw_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// Mistakes in the order of interceptors are logged once, and an order that cannot work is refused.
func TestOrder(t *testing.T) {
	byUser, byID := grpcmw.ScopeBy(grpcmw.ByContext(userKey{})), grpcmw.ByField("id")
	for name, c := range map[string]struct {
		chain  func(st store.Records, orders grpcmw.Interceptors, log policy.Option) []grpcmw.Interceptors
		logged string
		refuse bool
	}{
		"the same guard twice": {func(_ store.Records, orders grpcmw.Interceptors, _ policy.Option) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{orders, orders}
		}, "twice", true},
		"the same limit twice": {func(st store.Records, _ grpcmw.Interceptors, log policy.Option) []grpcmw.Interceptors {
			limit := ratelimit.New(must(tokenbucket.New(st.(store.Buckets), "api", tokenbucket.PerMinute(100))), byID, log)
			return []grpcmw.Interceptors{limit, limit}
		}, "twice", true},
		"the same semaphore twice": {func(st store.Records, _ grpcmw.Interceptors, log policy.Option) []grpcmw.Interceptors {
			permit := concurrency.New(newSemaphore(t, st.(store.Leases), 10), byID, log)
			return []grpcmw.Interceptors{permit, permit}
		}, "twice", true},
		"two guards": {func(st store.Records, orders grpcmw.Interceptors, log policy.Option) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{orders, idempotency.New(must(guard.New(st, "payments")), byUser, log)}
		}, "two guards", false},
		"a lock in front": {func(_ store.Records, orders grpcmw.Interceptors, _ policy.Option) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{exclusive.New(newLocker(t, newStore(t)), byID), orders}
		}, "in front of idempotency", false},
		"a permit in front": {func(_ store.Records, orders grpcmw.Interceptors, _ policy.Option) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{concurrency.New(newSemaphore(t, newStore(t), 10), byID), orders}
		}, "in front of idempotency", false},
		"the right order": {func(_ store.Records, orders grpcmw.Interceptors, _ policy.Option) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{
				orders, exclusive.New(newLocker(t, newStore(t)), byID), concurrency.New(newSemaphore(t, newStore(t), 10), byID),
			}
		}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			var j mwtest.Journal
			var s service
			st, log := newStore(t), policy.Logger(j.Logger())
			client := serve(t, &s, c.chain(st, idempotency.New(newGuard(t, st), byUser, log), log)...)
			for n := range 3 {
				for range 2 {
					thing, err := client.Make(with(t, "x-user", "u", "idempotency-key", strconv.Itoa(n)), &things.MakeRequest{Id: "1"})
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
