package lock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// The outage of a master of a Cluster ends its leases, and no others.
func TestOneMasterDown(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	store := must(redisstore.New(cluster.Client(), redisstore.WithTimeout(time.Second)))
	defer store.Close()
	l := newLocker(t, leasesOf(t, store), lock.WithTTL(3*time.Second))
	var leases []*lock.Lease
	for i := range 30 {
		leases = append(leases, mustLock(t, l, fmt.Sprint("k", i)))
	}
	cluster.Servers[0].Stop()
	<-time.After(6 * time.Second) // two leases
	ended, kept := 0, 0
	for _, lease := range leases {
		switch {
		case lease.Context().Err() == nil:
			kept++
			mustUnlock(t, lease)
		case errors.Is(context.Cause(lease.Context()), lock.ErrExpired):
			ended++
		default:
			t.Errorf("%s has ended: %v", lease.Key(), context.Cause(lease.Context()))
		}
	}
	if ended == 0 || kept < 10 {
		t.Errorf("%d leases have ended, %d are kept", ended, kept)
	}
}
