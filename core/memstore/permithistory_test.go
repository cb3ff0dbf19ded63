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

// Clients that wait, die and release at random never have more in use than the largest capacity;
// every waiter is granted its permits; and the store keeps nothing after their expiry.
func TestPermitHistories(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &permitHistory{t: t, s: New(), fences: map[int64]string{}}
				var wg sync.WaitGroup
				for i := range uint64(12) {
					wg.Go(func() { h.client(rand.New(rand.NewPCG(seed, i)), int(i)) })
				}
				wg.Wait()
				time.Sleep(time.Minute + 20*time.Second)
				nothingLeft(t, h.s, &h.s.permits)
			})
		})
	}
}

type permitHistory struct {
	t      *testing.T
	s      *Store
	mu     sync.Mutex
	fences map[int64]string // by the ID of its request
}

func (h *permitHistory) client(r *rand.Rand, n int) {
	ctx := context.Background()
	for i := range 60 {
		ms := func(most int) time.Duration { return time.Duration(r.IntN(most)) * time.Millisecond }
		key := fmt.Sprint("k", r.IntN(2))
		req := store.PermitRequest{
			Name: "n", Key: key, ID: fmt.Sprintf("%d-%d", n, i), Weight: 1 + r.IntN(3), Capacity: 3 + r.IntN(3),
			Queue: r.IntN(5) > 0, Barging: r.IntN(6) == 0, TTL: 50*time.Millisecond + ms(3000),
		}
		about := []store.PermitRef{{Name: "n", Key: key, ID: req.ID, TTL: req.TTL}}
		time.Sleep(ms(200))
		reply, err := h.s.AcquirePermits(ctx, req)
		if err != nil {
			h.t.Errorf("AcquirePermits: %v", err)
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
			if r.IntN(3) == 0 {
				more := req
				more.Capacity = min(req.Capacity+1, 5)
				time.AfterFunc(ms(200), func() { _, _ = h.s.AcquirePermits(waiting, more) })
			}
			grant, err = h.s.AwaitPermits(waiting, req)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) && patience < time.Hour {
				if r.IntN(2) == 0 {
					_, _ = h.s.ReleasePermits(ctx, about)
				}
				continue
			}
			if err != nil {
				h.t.Errorf("AwaitPermits: %v", err)
				return
			}
		}
		h.granted(req, grant)
		if r.IntN(4) == 0 {
			continue // a dead client
		}
		time.Sleep(ms(60))
		if r.IntN(3) == 0 {
			_, _ = h.s.RenewPermits(ctx, about)
		}
		time.Sleep(ms(60))
		_, _ = h.s.ReleasePermits(ctx, about)
	}
}

// granted checks the state at a grant.
func (h *permitHistory) granted(req store.PermitRequest, grant store.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if other, ok := h.fences[grant.Fence]; ok {
		h.t.Errorf("%s has the fence of %s", req.ID, other)
	}
	h.fences[grant.Fence] = req.ID
	state, err := h.s.InspectPermits(context.Background(), "n", req.Key)
	if err != nil {
		h.t.Error(err)
	}
	mine, held := false, 0
	for _, holder := range state.Holders {
		mine = mine || holder.Fence == grant.Fence && holder.Weight == req.Weight
		held += holder.Weight
	}
	if !mine || held > state.InUse || state.InUse > 5 {
		h.t.Errorf("granted %+v, but the state is %+v", grant, state)
	}
	sound(h.t, h.s)
}

// Requests that do not barge are granted in the order of arrival, whatever their weights.
func TestPermitsAreGrantedInOrder(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			s, r := New(), rand.New(rand.NewPCG(seed, 2))
			var wg sync.WaitGroup
			grants := make([]store.Grant, 200)
			for i := range grants {
				req := store.PermitRequest{
					Name: "n", Key: "k", ID: fmt.Sprint(i), Weight: 1 + r.IntN(5), Capacity: 5, Queue: true, TTL: time.Minute,
				}
				holds, dies := time.Duration(r.IntN(5000))*time.Microsecond, r.IntN(50) == 0
				wg.Go(func() {
					reply, err := s.AcquirePermits(t.Context(), req)
					if err == nil && reply.Outcome == store.Queued {
						reply.Grant, err = s.AwaitPermits(t.Context(), req)
					}
					if err != nil {
						t.Errorf("request %s: %v", req.ID, err)
					}
					grants[i] = reply.Grant
					time.Sleep(holds)
					if !dies {
						_, _ = s.ReleasePermits(t.Context(), []store.PermitRef{{Name: "n", Key: "k", ID: req.ID}})
					}
				})
				time.Sleep(time.Duration(1+r.IntN(2000)) * time.Microsecond)
			}
			wg.Wait()
			for i, grant := range grants[1:] {
				if before := grants[i]; grant.Sent.Before(before.Sent) || grant.Fence <= before.Fence {
					t.Errorf("seed %d: request %d was granted %+v, and the one after it %+v", seed, i, before, grant)
				}
			}
		})
	}
}

// A call after many permits have expired finds exactly those, in little time.
func TestTenThousandPermitsExpire(t *testing.T) {
	const n = 10_000
	best := time.Hour
	for range 5 {
		s := New(WithMaxPermits(4 * n))
		shard := shardOf(s, s.permits.shards, "k")
		acquire := func(id string, weight int, now time.Duration, want store.AcquireOutcome) {
			t.Helper()
			req := store.PermitRequest{Name: "n", Key: "k", ID: id, Weight: weight, Capacity: 2 * n, TTL: time.Minute}
			reply, _, err := acquirePermit(shard, req, now.Microseconds())
			if err != nil || reply.Outcome != want {
				t.Fatalf("%s: %+v, %v, want outcome %d", id, reply, err, want)
			}
		}
		at := func(i int) time.Duration { return time.Duration(i*7919%n) * time.Microsecond }
		for i := range n {
			acquire(fmt.Sprint(i), 1, at(i), store.Granted)
		}
		acquire("renewed", n, time.Minute-time.Microsecond, store.Granted)
		acquire("too early", 1, time.Minute-time.Microsecond, store.Taken)
		acquire("one", 1, time.Minute, store.Granted) // since one has ended
		acquire("two", 1, time.Minute, store.Taken)
		start := time.Now()
		acquire("most", n-2, time.Minute+n*time.Microsecond-2*time.Microsecond, store.Granted) // since all but one have
		best = min(best, time.Since(start))
		acquire("late", 1, time.Minute+n*time.Microsecond-2*time.Microsecond, store.Taken)
		sound(t, s)
		if got := s.permits.requests.Load(); got != 4 {
			t.Errorf("%d requests are counted, want the live ones: 4", got)
		}
	}
	t.Logf("the call that found %d permits expired took %v", n-2, best)
	if best > 50*time.Millisecond { // 2 ms on an idle machine
		t.Errorf("the call that found %d permits expired took %v", n-2, best)
	}
}
