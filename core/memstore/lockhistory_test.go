package memstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Clients that wait, die and release at random never hold a lock together with a writer; every
// waiter is granted its lock; and the store keeps nothing after their expiry.
func TestLockHistories(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &history{t: t, s: New(), last: map[string]int64{}}
				var wg sync.WaitGroup
				for i := range uint64(12) {
					wg.Go(func() { h.client(rand.New(rand.NewPCG(seed, i)), int(i)) })
				}
				wg.Wait()
				time.Sleep(time.Minute + 20*time.Second)
				nothingLeft(t, h.s, &h.s.locks)
			})
		})
	}
}

// nothingLeft checks that a store keeps nothing of locks or semaphores that have expired.
func nothingLeft[T resource, R any](t *testing.T, s *Store, all *shardSet[T, R]) {
	for i := range all.shards {
		shard := &all.shards[i]
		shard.sweep(len(shard.order), s.now())
		if n := len(shard.index) + len(shard.order) + len(shard.requests); n != 0 {
			t.Errorf("%d resources, %d in order, and %d requests are kept", len(shard.index), len(shard.order), len(shard.requests))
		}
		for shard.released.first != nil {
			shard.released.removeFirst(&all.tombstones)
		}
		if len(shard.released.byID) != 0 {
			t.Errorf("%d tombstones that nothing removes", len(shard.released.byID))
		}
	}
	if n, m := all.requests.Load(), all.tombstones.Load(); n != 0 || m != 0 {
		t.Errorf("counted %d requests and %d tombstones too many", n, m)
	}
}

type history struct {
	t    *testing.T
	s    *Store
	mu   sync.Mutex
	last map[string]int64 // the last fence of an exclusive hold, by key
}

func (h *history) client(r *rand.Rand, n int) {
	ctx := context.Background()
	for i := range 60 {
		ms := func(most int) time.Duration { return time.Duration(r.IntN(most)) * time.Millisecond }
		key := fmt.Sprint("k", r.IntN(2))
		req := store.LockRequest{
			Name: "n", Key: key, ID: fmt.Sprintf("%d-%d", n, i), Shared: r.IntN(2) == 0, Queue: r.IntN(5) > 0,
			TTL: 50*time.Millisecond + ms(3000), Delay: ms(1 + r.IntN(2)*100), Fences: 1 + r.IntN(3),
		}
		hold := store.LockRef{Name: "n", Key: key, ID: req.ID, TTL: req.TTL, Delay: req.Delay}
		time.Sleep(ms(200))
		reply, err := h.s.AcquireLock(ctx, req)
		if err != nil {
			h.t.Errorf("AcquireLock: %v", err)
		}
		grant := reply.Grant
		switch reply.Outcome {
		case store.Taken:
			continue
		case store.Queued:
			if r.IntN(6) == 0 {
				continue // a dead client
			}
			time.Sleep(ms(100))
			patience := time.Hour // enough for all waiters
			if r.IntN(3) == 0 {
				patience = ms(500)
			}
			waiting, cancel := context.WithTimeout(ctx, patience)
			grant, err = h.s.AwaitLock(waiting, req)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && patience < time.Hour {
				if r.IntN(2) == 0 {
					_, _ = h.s.ReleaseLock(ctx, hold)
				}
				continue
			}
			if err != nil {
				h.t.Errorf("AwaitLock: %v", err)
				return
			}
		}
		h.granted(req, grant)
		if r.IntN(4) == 0 {
			continue // a dead client
		}
		time.Sleep(ms(60))
		switch r.IntN(5) {
		case 0:
			_, _ = h.s.RenewLocks(ctx, []store.LockRef{hold})
		case 1:
			_, _ = h.s.DowngradeLock(ctx, hold)
		case 2:
			_, _ = h.s.ForceUnlock(ctx, "n", key, grant.LastFence)
		}
		time.Sleep(ms(60))
		_, _ = h.s.ReleaseLock(ctx, hold)
	}
}

// granted checks the state at a grant.
func (h *history) granted(req store.LockRequest, grant store.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !req.Shared {
		if grant.Fence <= h.last[req.Key] {
			h.t.Errorf("fence %d, after %d", grant.Fence, h.last[req.Key])
		}
		h.last[req.Key] = grant.LastFence
	}
	state, err := h.s.InspectLock(context.Background(), "n", req.Key)
	if err != nil {
		h.t.Error(err)
	}
	mine := false
	for _, holder := range state.Holders {
		mine = mine || holder.Fence == grant.Fence
		if !holder.Shared && len(state.Holders) > 1 {
			h.t.Errorf("a writer is not alone: %+v", state)
		}
	}
	if !mine {
		h.t.Errorf("granted %+v, but the holders are %+v", grant, state)
	}
}
