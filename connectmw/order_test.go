package connectmw_test

import (
	"strconv"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// Mistakes in the order of interceptors are logged once, and an order that cannot work is refused.
func TestOrder(t *testing.T) {
	byUser, byID := connectmw.ScopeBy(connectmw.ByContext(userKey{})), connectmw.ByField("id")
	for name, c := range map[string]struct {
		chain  func(st store.Records, orders connect.Interceptor, log policy.Option) []connect.Interceptor
		logged string
		refuse bool
	}{
		"the same guard twice": {func(_ store.Records, orders connect.Interceptor, _ policy.Option) []connect.Interceptor {
			return []connect.Interceptor{orders, orders}
		}, "twice", true},
		"the same limit twice": {func(st store.Records, _ connect.Interceptor, log policy.Option) []connect.Interceptor {
			limit := ratelimit.New(must(tokenbucket.New(st.(store.Buckets), "api", tokenbucket.PerMinute(100))), byID, log)
			return []connect.Interceptor{limit, limit}
		}, "twice", true},
		"the same semaphore twice": {func(st store.Records, _ connect.Interceptor, log policy.Option) []connect.Interceptor {
			permit := concurrency.New(newSemaphore(t, st.(store.Leases), 10), byID, log)
			return []connect.Interceptor{permit, permit}
		}, "twice", true},
		"two guards": {func(st store.Records, orders connect.Interceptor, log policy.Option) []connect.Interceptor {
			return []connect.Interceptor{orders, idempotency.New(must(guard.New(st, "payments")), byUser, log)}
		}, "two guards", false},
		"a lock in front": {func(_ store.Records, orders connect.Interceptor, _ policy.Option) []connect.Interceptor {
			return []connect.Interceptor{exclusive.New(newLocker(t, newStore(t)), byID), orders}
		}, "in front of idempotency", false},
		"a permit in front": {func(_ store.Records, orders connect.Interceptor, _ policy.Option) []connect.Interceptor {
			return []connect.Interceptor{concurrency.New(newSemaphore(t, newStore(t), 10), byID), orders}
		}, "in front of idempotency", false},
		"the right order": {func(_ store.Records, orders connect.Interceptor, _ policy.Option) []connect.Interceptor {
			return []connect.Interceptor{
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
