package redisstore_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestCrashes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	storetest.Crashes(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*redisstore.Store])) {
		t.Parallel()
		test(t, storetest.Harness[*redisstore.Store]{
			Store: newStore(t, server.Client()), Advance: time.Sleep,
			Another: func() (*redisstore.Store, func()) {
				proxy := redistest.NewProxy(t, server.Addr())
				client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: proxy.Addr(), MaxRetries: -1})
				t.Cleanup(func() { _ = client.Close() })
				return newStore(t, client), func() {
					proxy.BlackHole()
					proxy.CutAll()
				}
			},
		})
	})
}
