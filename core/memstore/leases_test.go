package memstore_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// leases makes requests for the leases of one key.
type leases struct {
	t *testing.T
	s *memstore.Store
}

// inLeases runs a test with faked time.
func inLeases(t *testing.T, test func(t *testing.T, l leases), opts ...memstore.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, leases{t, memstore.New(opts...)}) })
}

// leaseOf is a request of a weight that queues, for a capacity of 4.
func leaseOf(weight int, id string) store.LeaseRequest {
	return store.LeaseRequest{Name: "n", Key: "k", ID: id, Weight: weight, Capacity: 4, Queue: true, TTL: time.Minute, Fences: 1}
}

func (l leases) acquire(req store.LeaseRequest, want store.AcquireOutcome) store.LeaseReply {
	l.t.Helper()
	reply, err := l.s.AcquireLease(l.t.Context(), req)
	if err != nil || reply.Outcome != want {
		l.t.Fatalf("%s: %+v, %v, want outcome %d", req.ID, reply, err, want)
	}
	return reply
}

func (l leases) release(req store.LeaseRequest, fence int64, want store.ReleaseOutcome) {
	l.t.Helper()
	outcomes, err := l.s.ReleaseLeases(l.t.Context(), []store.LeaseRef{req.Ref(fence)})
	if err != nil || outcomes[0] != want {
		l.t.Fatalf("release of %s: %v, %v, want %v", req.ID, outcomes, err, want)
	}
}

// A full store refuses new requests, and nothing else.
func TestFullOfLeases(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		first, waits := leaseOf(4, "first"), leaseOf(1, "waits")
		elsewhere := func(i int) store.LeaseRequest {
			req := leaseOf(1, fmt.Sprint(i))
			req.Key = req.ID
			return req
		}
		fence := l.acquire(first, store.Granted).Fence
		l.acquire(waits, store.Queued)
		for i := range 8 {
			l.acquire(elsewhere(i), store.Granted)
		}
		full := func(req store.LeaseRequest) {
			t.Helper()
			if reply, err := l.s.AcquireLease(t.Context(), req); !errors.Is(err, store.ErrFull) || !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("%s: %+v, %v, want store.ErrFull", req.ID, reply, err)
			}
			if grant, err := l.s.AwaitLease(t.Context(), req); !errors.Is(err, store.ErrFull) {
				t.Fatalf("%s: %+v, %v, want store.ErrFull", req.ID, grant, err)
			}
		}
		full(elsewhere(8))
		full(leaseOf(1, "late"))
		try := leaseOf(1, "try")
		try.Queue = false
		l.acquire(try, store.Taken)
		l.acquire(first, store.Granted) // again
		l.acquire(waits, store.Queued)
		l.release(leaseOf(1, "nothing"), 0, store.NotHeld)
		l.release(first, fence, store.Released)
		if grant, err := l.s.AwaitLease(t.Context(), waits); err != nil || grant.Fence == 0 {
			t.Fatalf("the next in the queue: %+v, %v", grant, err)
		}
		l.acquire(elsewhere(8), store.Granted)
		full(elsewhere(9))
		time.Sleep(time.Minute)
		for i := range 10 { // what has expired makes room
			l.acquire(elsewhere(100+i), store.Granted)
		}
		full(elsewhere(9))
	}, memstore.WithMaxLeases(10))
}

// Expired holds leave room without a sweep in the background, also in a store of many shards.
func TestExpiredLeasesMakeRoom(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{100, 20_000} {
		inLeases(t, func(_ *testing.T, l leases) {
			for i := range 3 * limit {
				req := leaseOf(1, fmt.Sprint(i))
				req.Key, req.TTL = fmt.Sprint("k", i/3), time.Millisecond
				l.acquire(req, store.Granted)
				time.Sleep(time.Second / time.Duration(200*limit)) // a fifth are live at a time
			}
		}, memstore.WithMaxLeases(limit))
	}
	const most = 1 << 15 // in eight shards
	inLeases(t, func(_ *testing.T, l leases) {
		for i := range most { // of one key, and so in one shard
			req := leaseOf(1, fmt.Sprint(i))
			req.Capacity, req.TTL = most, time.Millisecond
			l.acquire(req, store.Granted)
		}
		time.Sleep(time.Millisecond)
		elsewhere := leaseOf(1, "elsewhere")
		elsewhere.Key = "elsewhere" // probably in another one
		l.acquire(elsewhere, store.Granted)
	}, memstore.WithMaxLeases(most))
}

// A release ends what has the ID: a place, or a hold with any fence. It is final for the ID's caller,
// so the store keeps nothing of it.
func TestReleasedLeases(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		first, second, waits := leaseOf(4, "first"), leaseOf(4, "second"), leaseOf(4, "waits")
		again := func(req store.LeaseRequest, fence int64) {
			t.Helper()
			l.release(req, fence, store.NotHeld)
			ref := req.Ref(fence)
			ref.Repeated = true
			if outcomes, err := l.s.ReleaseLeases(t.Context(), []store.LeaseRef{ref}); err != nil || outcomes[0] != store.ReleaseUnknown {
				t.Errorf("the repeated release of %s: %v, %v", req.ID, outcomes, err)
			}
		}
		fence := l.acquire(first, store.Granted).Fence
		l.acquire(waits, store.Queued)
		l.release(waits, 0, store.NotHeld)
		again(waits, 0)
		l.release(first, fence, store.Released)
		again(first, fence)
		again(first, 0)
		fence = l.acquire(second, store.Granted).Fence
		l.release(second, fence+1, store.NotHeld)
		again(second, fence)
		l.acquire(first, store.Granted)
		l.release(first, 0, store.Released)
	})
}

// A grant of a request that no call awaited lasts for two seconds, and from its repeat for its TTL.
func TestUntakenGrant(t *testing.T) {
	inLeases(t, func(t *testing.T, l leases) {
		first, second := leaseOf(4, "first"), leaseOf(4, "second")
		fence := l.acquire(first, store.Granted).Fence
		place := l.acquire(second, store.Queued).Place
		remains := func(want time.Duration) {
			t.Helper()
			state, err := l.s.InspectLease(t.Context(), "n", "k")
			if err != nil || len(state.Holders) != 1 || state.Holders[0].Remaining != want {
				t.Fatalf("%+v, %v, want one hold for %v", state, err, want)
			}
		}
		l.release(first, fence, store.Released)
		remains(2 * time.Second)
		time.Sleep(time.Second)
		grant, err := l.s.AwaitLease(t.Context(), second)
		if err != nil || !grant.Sent.Equal(time.Now()) || grant.TTL != time.Minute || grant.Place != place || grant.Untaken {
			t.Fatalf("%+v, %v", grant, err)
		}
		remains(time.Minute)
		time.Sleep(time.Second)
		if again := l.acquire(second, store.Granted); again.Grant != grant {
			t.Fatalf("again: %+v, want %+v", again, grant)
		}
		remains(59 * time.Second)

		// One that expires is queued again at its number.
		third, fourth, another := leaseOf(4, "third"), leaseOf(4, "fourth"), leaseOf(4, "another")
		third.Place = l.acquire(third, store.Queued).Place
		l.release(second, grant.Fence, store.Released)
		time.Sleep(2 * time.Second)
		fence = l.acquire(another, store.Granted).Fence
		l.acquire(fourth, store.Queued)
		if reply := l.acquire(third, store.Queued); reply.Place != third.Place {
			t.Errorf("queued again at %d, want %d", reply.Place, third.Place)
		}
		l.release(another, fence, store.Released)
		l.acquire(third, store.Granted)
		l.acquire(fourth, store.Queued)
	})
}
