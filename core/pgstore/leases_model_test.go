package pgstore

import (
	"context"
	cryptorand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// seen is what two stores must have in common.
type seen struct {
	outcome        store.AcquireOutcome
	released       store.ReleaseOutcome
	done, full     bool
	inUse, waiting int
	holders        []int
	waiters        string
}

func look(t *testing.T, s store.Store, name string, v seen) string {
	t.Helper()
	state, err := s.InspectLease(t.Context(), name, "k")
	must(t, err)
	v.inUse, v.waiting = state.InUse, state.Waiting
	for _, h := range state.Holders {
		v.holders = append(v.holders, h.Weight)
	}
	slices.Sort(v.holders)
	for _, w := range state.Waiters {
		v.waiters += fmt.Sprintf(" %d~%d%s", w.Weight, w.Reserve, w.Label)
	}
	return fmt.Sprintf("%+v", v)
}

// Random requests are granted, queued and refused as by core/memstore.
func TestLeasesLikeMemory(t *testing.T) {
	t.Parallel()
	pg := openTestStore(t, migrated(t))
	// A grant that no call awaits must not run out during the test, on either clock.
	change(t, pg, `CREATE OR REPLACE FUNCTION lk.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
		'SELECT `+fmt.Sprint(time.Now().UnixMicro())+` + (extract(epoch FROM clock_timestamp() - pg_postmaster_start_time()) * 1000)::bigint'`)
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			var want []string
			synctest.Test(t, func(t *testing.T) {
				memory := memstore.New()
				defer func() { _ = memory.Close() }()
				want = randomLeases(t, memory, seed)
			})
			for i, got := range randomLeases(t, pg, seed) {
				if got != want[i] {
					t.Fatalf("step %d: %s\nin memory: %s", i, got, want[i])
				}
			}
		})
	}
}

// randomLeases carries out random steps on a semaphore of its own, and returns what is seen of each.
func randomLeases(t *testing.T, s store.Store, seed uint64) (views []string) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
	name := store.SemaphoreKind + fmt.Sprint(random.Uint64())
	var requests []store.LeaseRequest
	for i := range 40 {
		var req store.LeaseRequest
		fresh := len(requests) == 0 || random.IntN(2) == 0
		if fresh {
			capacity := 4 + random.IntN(6)
			req = store.LeaseRequest{
				Name: name, Key: "k", ID: cryptorand.Text()[:22], Weight: 1 + random.IntN(4), Capacity: capacity, Reserve: max(0, random.IntN(6)-3),
				Queue: random.IntN(4) > 0, MaxWaiting: random.IntN(2) * 5, TTL: 30 * time.Second, Fences: 2, Label: fmt.Sprint(i),
			}
			req.Weight = min(req.Weight, capacity-req.Reserve)
			requests = append(requests, req)
		} else {
			req = requests[random.IntN(len(requests))]
		}
		op := random.IntN(8)
		if fresh {
			op = 0
		}
		capacity, weight := 4+random.IntN(6), 1+random.IntN(4)
		var v seen
		switch {
		case op < 2:
			again := req
			if !fresh {
				again.Capacity, again.Queue = max(capacity, req.Weight+req.Reserve), true
			}
			reply, err := s.AcquireLease(context.Background(), again)
			must(t, err)
			v.outcome, v.full = reply.Outcome, reply.QueueFull
			if reply.Outcome == store.Taken || reply.Outcome == store.Queued {
				v.holders = append(v.holders, -reply.InUse, -reply.Waiting)
			}
		case op < 7:
			outcomes, err := s.ReleaseLeases(context.Background(), []store.LeaseRef{req.Ref(0)})
			must(t, err)
			v.released = outcomes[0]
		default:
			reply, err := s.AcquireLease(context.Background(), req) // for the fence
			must(t, err)
			if reply.Outcome == store.Granted {
				v.done, err = s.DowngradeLease(context.Background(), req.Ref(reply.Fence), weight)
				must(t, err)
			}
		}
		if v.released == store.Released && op < 7 {
			v.released = store.NotHeld // a repeated release may say either
		}
		req.ID = ""
		views = append(views, fmt.Sprintf("%d with %+v: %s", op, req, look(t, s, name, v)))
	}
	return views
}
