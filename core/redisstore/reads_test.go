package redisstore_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Reads work on a server that takes no writes, also while the breaker is open for that reason; not
// while the server cannot be reached. Writes, and the check of a lease, are refused at once.
func TestReadsOnReadOnlyServers(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string][]any{
		"a replica":        {"replicaof", "127.0.0.1", "1"},
		"without replicas": {"config", "set", "min-replicas-to-write", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr())
			s := newStore(t, dial(t, proxy.Addr(), time.Minute), redisstore.WithTimeout(testpace.Scale(500*time.Millisecond)))
			eventually(t, 5*time.Second, "it works", func() bool { return lockAndUnlock(s, 0) == nil })
			must(t, server.Client().Do(ctx(), refuse...).Err())
			writeRefused := func() bool { return breaker.Refused(lockAndUnlock(s, 0)) }
			eventually(t, 5*time.Second, "the breaker opens", writeRefused)
			for range 20 {
				eventually(t, 5*time.Second, "it reads", func() bool { return storetest.Reads(ctx(), s) == nil })
				if !writeRefused() {
					t.Error("a write is not refused")
				}
				if _, err := s.VerifyLease(ctx(), store.LeaseRef{Name: "locks", Key: "k", ID: "id", TTL: time.Second}); !breaker.Refused(err) {
					t.Errorf("the check of a lease: %v", err)
				}
			}
			proxy.BlackHole()
			eventually(t, 10*time.Second, "reads are refused", func() bool {
				_, err := s.InspectLease(ctx(), "locks", "k")
				return breaker.Refused(err)
			})
			proxy.Mend()
			eventually(t, 5*time.Second, "reads work again", func() bool { return storetest.Reads(ctx(), s) == nil })
		})
	}
}
