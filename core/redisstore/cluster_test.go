package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client()
	t.Run("renewals in many slots", func(t *testing.T) {
		s := newStore(t, client)
		var renewals []store.RenewRequest
		for i := range 100 {
			o := newOp(fmt.Sprint("slot-", i))
			if i%10 != 0 {
				o.started(t, s)
			}
			renewals = append(renewals, o.renewal())
		}
		for _, server := range cluster.Servers { // in a pipeline, each finds its script gone
			if err := server.Client().ScriptFlush(ctx()).Err(); err != nil {
				t.Fatal(err)
			}
			if n := server.Client().DBSize(ctx()).Val(); n < 10 {
				t.Errorf("a master holds %d records: the test does not test what it says", n)
			}
		}
		held, err := s.RenewOperations(ctx(), renewals)
		if err != nil || len(held) != len(renewals) {
			t.Fatalf("renewed %v, %v", held, err)
		}
		for i, h := range held {
			if h != (i%10 != 0) {
				t.Errorf("renewal %d: %v", i, h)
			}
		}
	})

	t.Run("one master evicts", func(t *testing.T) {
		master := cluster.Servers[2].Client()
		configure(t, master, "maxmemory-policy", "volatile-ttl")
		defer configure(t, master, "maxmemory-policy", "noeviction")
		_, err := newOp("evicted").begin(newStore(t, client))
		wantUnavailable(t, err, false)
	})

	t.Run("one master down", func(t *testing.T) { // last: it does not come back
		s := newStore(t, client, hasty)
		l := newLimiter(t, s)
		cluster.Servers[0].Stop()
		// A new process finds the scripts of one master out of reach; the others must serve its
		// calls.
		worked, failed := 0, 0
		eventually(t, 10*time.Second, "most keys are served", func() bool {
			for i := range 30 {
				if _, err := l.Allow(ctx(), fmt.Sprint("k", i)); err == nil {
					worked++
				} else {
					failed++
				}
			}
			return worked >= 10
		})
		if failed == 0 {
			t.Error("no key was on the master that is down: the test does not test what it says")
		}
	})
}
