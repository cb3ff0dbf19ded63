package lock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// peer is a Locker with its own store and connections, as of another process.
type peer struct {
	*lock.Locker
	store  *redisstore.Store
	client *redis.Client
}

func newPeer(t *testing.T, server *redistest.Server, opts ...lock.Option) peer {
	t.Helper()
	client := server.Client()
	store := must(redisstore.New(client, redisstore.WithTimeout(5*time.Second)))
	t.Cleanup(func() { _ = store.Close() })
	return peer{newLocker(t, leasesOf(t, store), opts...), store, client}
}

// die ends a peer as the death of its process does: it releases nothing.
func (p peer) die() {
	_ = p.client.Close() // first, so that the store cannot release its leases
	_ = p.store.Close()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 20s: %s", what)
		}
	}
}

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
