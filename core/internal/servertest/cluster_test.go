package servertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The outage of a master of a Cluster ends its leases, and no others: those are renewed.
func TestOneMasterDown(t *testing.T) {
	t.Parallel()
	ttl := testpace.Scale(6 * time.Second)
	cluster := redistest.StartCluster(t)
	store := newStore(t, cluster.Client(), redisstore.WithTimeout(2*time.Second))
	l := newLocker(t, store, lock.WithTTL(ttl))
	var leases []*lock.Lease
	for i := range 30 {
		leases = append(leases, insistOn(t, l, fmt.Sprint("k", i)))
	}
	down := int(cluster.Servers[0].Client().DBSize(t.Context()).Val()) // each lock is a key
	cluster.Servers[0].Stop()
	past := time.Now().Add(ttl) // no lease is valid for longer without a renewal

	ended, kept := 0, 0
	eventually(t, "every lease has ended or is renewed", func() bool {
		ended, kept = 0, 0
		for _, lease := range leases {
			switch {
			case lease.Context().Err() != nil:
				ended++
			case lease.ValidUntil().After(past):
				kept++
			}
		}
		return ended+kept == len(leases)
	})
	if ended != down || ended == 0 || kept < 10 {
		t.Errorf("%d leases have ended, %d are kept; the master had %d", ended, kept, down)
	}
	for _, lease := range leases {
		if lease.Context().Err() == nil {
			mustUnlock(t, lease)
		} else if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrExpired) {
			t.Errorf("%s has ended: %v", lease.Key(), cause)
		}
	}
}
