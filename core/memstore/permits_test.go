package memstore_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// permits makes requests for the permits of one semaphore.
type permits struct {
	t *testing.T
	s *memstore.Store
}

// inPermits runs a test with faked time.
func inPermits(t *testing.T, test func(t *testing.T, p permits), opts ...memstore.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, permits{t, memstore.New(opts...)}) })
}

// weighing is a request of a weight that queues, for a semaphore of capacity 4.
func weighing(weight int, id string) store.PermitRequest {
	return store.PermitRequest{Name: "n", Key: "k", ID: id, Weight: weight, Capacity: 4, Queue: true, TTL: time.Minute}
}

func (p permits) acquire(req store.PermitRequest, want store.AcquireOutcome) store.PermitReply {
	p.t.Helper()
	reply, err := p.s.AcquirePermits(p.t.Context(), req)
	if err != nil || reply.Outcome != want {
		p.t.Fatalf("%s: %+v, %v, want outcome %d", req.ID, reply, err, want)
	}
	return reply
}

// queue queues requests, in this order.
func (p permits) queue(reqs ...store.PermitRequest) {
	p.t.Helper()
	for _, req := range reqs {
		p.acquire(req, store.Queued)
	}
}

func (p permits) release(req store.PermitRequest, want bool) {
	p.t.Helper()
	held, err := p.s.ReleasePermits(p.t.Context(), []store.PermitRef{{Name: req.Name, Key: req.Key, ID: req.ID}})
	if err != nil || !slices.Equal(held, []bool{want}) {
		p.t.Fatalf("release of %s: %v, %v, want %v", req.ID, held, err, want)
	}
}

// A full store refuses new requests, and nothing else.
func TestFullOfPermits(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		first, waits := weighing(4, "first"), weighing(1, "waits")
		elsewhere := func(i int) store.PermitRequest {
			req := weighing(1, fmt.Sprint(i))
			req.Key = req.ID
			return req
		}
		p.acquire(first, store.Granted)
		p.queue(waits)
		for i := range 8 {
			p.acquire(elsewhere(i), store.Granted)
		}
		full := func(req store.PermitRequest) {
			t.Helper()
			if reply, err := p.s.AcquirePermits(t.Context(), req); !errors.Is(err, store.ErrFull) || !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("%s: %+v, %v, want store.ErrFull", req.ID, reply, err)
			}
			if grant, err := p.s.AwaitPermits(t.Context(), req); !errors.Is(err, store.ErrFull) {
				t.Fatalf("%s: %+v, %v, want store.ErrFull", req.ID, grant, err)
			}
		}
		full(elsewhere(8))
		full(weighing(1, "late"))
		try := weighing(1, "try")
		try.Queue = false
		p.acquire(try, store.Taken)
		p.acquire(first, store.Granted) // again
		p.queue(waits)
		p.release(weighing(1, "nothing"), false)
		p.release(first, true)
		if grant, err := p.s.AwaitPermits(t.Context(), waits); err != nil || grant.Fence == 0 {
			t.Fatalf("the next in the queue: %+v, %v", grant, err)
		}
		p.acquire(elsewhere(8), store.Granted)
		full(elsewhere(9))
		time.Sleep(time.Minute)
		for i := range 10 { // what has expired makes room
			p.acquire(elsewhere(100+i), store.Granted)
		}
		full(elsewhere(9))
	}, memstore.WithMaxPermits(10))
}

// Expired permits leave room without a sweep in the background, also in a store of many shards.
func TestExpiredPermitsMakeRoom(t *testing.T) {
	for _, limit := range []int{100, 20_000} {
		inPermits(t, func(_ *testing.T, p permits) {
			for i := range 3 * limit {
				req := weighing(1, fmt.Sprint(i))
				req.Key, req.TTL = fmt.Sprint("k", i/3), time.Millisecond
				p.acquire(req, store.Granted)
				time.Sleep(time.Second / time.Duration(200*limit)) // a fifth are live at a time
			}
		}, memstore.WithMaxPermits(limit))
	}
}

func TestReleasedPermitsAreRefusedForAMinute(t *testing.T) {
	inPermits(t, func(_ *testing.T, p permits) {
		held, unknown, waits := weighing(4, "held"), weighing(1, "unknown"), weighing(1, "waits")
		p.acquire(held, store.Granted)
		p.queue(waits)
		for range 3 {
			p.release(waits, false)
			p.release(held, true)
			p.release(unknown, false)
			time.Sleep(19 * time.Second)
		}
		for _, req := range []store.PermitRequest{held, unknown, waits} {
			p.acquire(req, store.Withdrawn)
			if _, err := p.s.AwaitPermits(p.t.Context(), req); !errors.Is(err, store.ErrWithdrawn) {
				p.t.Errorf("%s: %v, want ErrWithdrawn", req.ID, err)
			}
		}
		time.Sleep(3 * time.Second)
		p.acquire(unknown, store.Granted)
	})
	inPermits(t, func(_ *testing.T, p permits) {
		for i := range 100 { // releasing is never refused
			p.release(weighing(1, fmt.Sprint(i)), false)
		}
		p.acquire(weighing(1, "97"), store.Withdrawn)
		p.acquire(weighing(1, "96"), store.Granted) // the oldest went first
	}, memstore.WithMaxPermits(3))
}
