package lock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// slowWaiter is a store whose first grant to a waiter was short, and has run out when it arrives.
type slowWaiter struct {
	store.Store
	awaited atomic.Int64
}

func (s *slowWaiter) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	grant, err := s.Store.AwaitLease(ctx, req)
	if err == nil && s.awaited.Add(1) == 1 {
		grant.Sent, grant.TTL, grant.Untaken = time.Now().Add(-3*time.Second), 2*time.Second, true
	}
	return grant, err
}

// A process that is too slow for a grant that was pushed to it queues again.
func TestASlowWaiterQueuesAgain(t *testing.T) {
	for mode, opts := range map[string][]lock.Option{"default": nil, "fair": {lock.WithFair()}} {
		t.Run(mode, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				slow := &slowWaiter{Store: w}
				held := mustLock(t, newLocker(t, w), "k")
				waiter := newLocker(t, slow, opts...)
				got := make(chan error, 1)
				go func() {
					lease, err := waiter.Lock(t.Context(), "k")
					if err == nil {
						err = lease.Unlock(t.Context())
					}
					got <- err
				}()
				time.Sleep(time.Second)
				mustUnlock(t, held)
				if err := <-got; err != nil || slow.awaited.Load() == 0 {
					t.Errorf("%v after %d grants", err, slow.awaited.Load())
				}
				time.Sleep(time.Second)
				wantFree(t, w, "k")
			})
		})
	}
}
