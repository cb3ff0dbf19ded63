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

// Clients that wait, die and release at random never hold more than their capacity; every waiter is
// granted its lease; and the store keeps nothing after their expiry.
func TestLeaseHistories(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &leaseHistory{t: t, s: New(), last: map[string]int64{}}
				var wg sync.WaitGroup
				for i := range uint64(12) {
					wg.Go(func() { h.client(rand.New(rand.NewPCG(seed, i)), int(i)) })
				}
				wg.Wait()
				time.Sleep(time.Minute + 20*time.Second)
				nothingLeft(t, h.s)
			})
		})
	}
}

type leaseHistory struct {
	t    *testing.T
	s    *Store
	mu   sync.Mutex
	last map[string]int64 // the last fence of a hold of all, by key
}

const historyCapacity = 3

func (h *leaseHistory) client(r *rand.Rand, n int) {
	ctx := context.Background()
	for i := range 60 {
		ms := func(most int) time.Duration { return time.Duration(r.IntN(most)) * time.Millisecond }
		weight := 1 + r.IntN(historyCapacity)
		req := store.LeaseRequest{
			Name: "n", Key: fmt.Sprint("k", r.IntN(2)), ID: fmt.Sprintf("%d-%d", n, i), Weight: weight, Capacity: historyCapacity,
			Reserve: r.IntN(historyCapacity - weight + 1), Queue: r.IntN(5) > 0, TTL: 50*time.Millisecond + ms(3000), Fences: 1 + r.IntN(3),
		}
		time.Sleep(ms(200))
		reply, err := h.s.AcquireLease(ctx, req)
		if err != nil {
			h.t.Errorf("AcquireLease: %v", err)
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
			req.Place = reply.Place
			grant, err = h.s.AwaitLease(waiting, req)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && patience < time.Hour {
				if r.IntN(2) == 0 {
					_, _ = h.s.ReleaseLeases(ctx, []store.LeaseRef{req.Ref(0)})
				}
				continue
			}
			if err != nil {
				h.t.Errorf("AwaitLease: %v", err)
				return
			}
		}
		h.granted(req, grant)
		if r.IntN(4) == 0 {
			continue // a dead client
		}
		hold := req.Ref(grant.Fence)
		time.Sleep(ms(60))
		switch r.IntN(5) {
		case 0:
			_, _ = h.s.RenewLeases(ctx, []store.LeaseRef{hold})
		case 1:
			_, _ = h.s.DowngradeLease(ctx, hold, 1)
		case 2:
			_, _ = h.s.RevokeLease(ctx, "n", req.Key, grant.LastFence)
		}
		time.Sleep(ms(60))
		_, _ = h.s.ReleaseLeases(ctx, []store.LeaseRef{hold})
	}
}

// granted checks the state at a grant.
func (h *leaseHistory) granted(req store.LeaseRequest, grant store.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if req.Weight == historyCapacity {
		if grant.Fence <= h.last[req.Key] {
			h.t.Errorf("fence %d, after %d", grant.Fence, h.last[req.Key])
		}
		h.last[req.Key] = grant.LastFence
	}
	state, err := h.s.InspectLease(context.Background(), "n", req.Key)
	if err != nil {
		h.t.Error(err)
	}
	mine, weight := false, 0
	for _, holder := range state.Holders {
		mine = mine || holder.Fence == grant.Fence
		weight += holder.Weight
	}
	if !mine || weight > historyCapacity || weight != state.InUse {
		h.t.Errorf("granted %+v, and the holders are %+v", grant, state)
	}
	soundLeases(h.t, h.s)
}
