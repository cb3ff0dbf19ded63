package servertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// 64 fair requests from 8 processes are granted in the order of arrival, though some are cancelled
// and a process dies.
func TestFairOrderAcrossProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var peers []peer
	for range 8 {
		peers = append(peers, newPeer(t, server, lock.WithFair()))
	}
	holder := newPeer(t, server, lock.WithFair())
	lease := mustLock(t, holder.Locker, "k")

	var (
		mu    sync.Mutex
		order []int
		wg    sync.WaitGroup
		want  []int
	)
	ctx := context.Background()
	cancelled, cancel := context.WithCancel(ctx)
	const dies = 3
	for i := range 64 {
		process := i % len(peers)
		mine := ctx
		switch {
		case i%5 == 4:
			mine = cancelled
		case process != dies:
			want = append(want, i)
		}
		wg.Go(func() {
			lease, err := peers[process].Lock(mine, "k")
			if err != nil {
				return
			}
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			_ = lease.Unlock(ctx)
		})
		eventually(t, fmt.Sprint("request ", i, " is in the queue"), func() bool {
			s, err := holder.Inspect(ctx, "k")
			return err == nil && s.Waiting == i+1
		})
	}
	cancel()
	peers[dies].die()
	mustUnlock(t, lease)
	wg.Wait()
	if !slices.Equal(order, want) {
		t.Errorf("granted in the order %v, want %v", order, want)
	}
	eventually(t, "nothing is left", func() bool {
		s, err := holder.Inspect(ctx, "k")
		return err == nil && len(s.Holders) == 0 && s.Waiting == 0
	})
}
