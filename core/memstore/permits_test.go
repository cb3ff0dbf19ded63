package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// permits asks a store for the permits of one semaphore.
type permits struct {
	t *testing.T
	s *memstore.Store
}

// inPermits runs a test where time is faked.
func inPermits(t *testing.T, test func(t *testing.T, p permits), opts ...memstore.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, permits{t, memstore.New(opts...)}) })
}

// weighing is a request of a weight that queues, for a semaphore of capacity 4.
func weighing(weight int, id string) store.PermitRequest {
	return store.PermitRequest{Name: "n", Key: "k", ID: id, Weight: weight, Capacity: 4, Queue: true, TTL: time.Minute}
}

func barging(weight int, id string) store.PermitRequest {
	req := weighing(weight, id)
	req.Barging = true
	return req
}

func of(capacity int, req store.PermitRequest) store.PermitRequest {
	req.Capacity = capacity
	return req
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

func (p permits) state(inUse, holders, waiting int) store.SemaphoreState {
	p.t.Helper()
	state, err := p.s.InspectPermits(p.t.Context(), "n", "k")
	if err != nil || state.InUse != inUse || len(state.Holders) != holders || state.Waiting != waiting {
		p.t.Fatalf("%+v, %v, want %d in use, %d holders, %d waiting", state, err, inUse, holders, waiting)
	}
	return state
}

// await has requests awaited until the test ends, and returns what is called to learn whose waits
// have ended since it was last called, in order of their IDs.
func (p permits) await(reqs ...store.PermitRequest) (granted func() []string) {
	var (
		mu  sync.Mutex
		ids []string
		wg  sync.WaitGroup
	)
	ctx, cancel := context.WithCancel(context.Background())
	for _, req := range reqs {
		wg.Go(func() {
			grant, err := p.s.AwaitPermits(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && grant.Fence > 0 {
				ids = append(ids, req.ID)
			} else if ctx.Err() == nil {
				p.t.Errorf("%s: %+v, %v", req.ID, grant, err)
			}
		})
	}
	p.t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	synctest.Wait()
	return func() []string {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		got := ids
		ids = nil
		slices.Sort(got)
		return got
	}
}

func wantGranted(t *testing.T, granted func() []string, want ...string) {
	t.Helper()
	if got := granted(); !slices.Equal(got, want) {
		t.Fatalf("granted %q, want %q", got, want)
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

// Semaphores that are forgotten do not pile up, though nobody sweeps in the background; not in a
// store of many parts either.
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

// A place is kept for three seconds after somebody cared, and a turn for two, in which what was
// asked for is in use.
func TestPlacesForPermits(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		holder, first, second, third := weighing(4, "holder"), weighing(3, "first"), weighing(4, "second"), weighing(1, "third")
		p.acquire(holder, store.Granted)
		p.queue(first, second, third)
		time.Sleep(2 * time.Second)
		p.queue(first, third)
		time.Sleep(time.Second) // the second's place is lost
		p.state(4, 1, 2)
		p.release(holder, true)
		p.state(4, 0, 0) // both have their turn, though nobody awaits them
		if reply := p.acquire(weighing(1, "late"), store.Queued); reply.InUse != 4 || reply.Waiting != 0 || reply.Remaining != 2*time.Second {
			t.Errorf("reply %+v, want that 4 are in use, for 2s at least", reply)
		}
		time.Sleep(time.Second)
		p.acquire(third, store.Granted)
		time.Sleep(time.Second) // and the first's turn is over
		p.acquire(weighing(1, "late"), store.Granted)
		state := p.state(2, 2, 0)
		for _, h := range state.Holders {
			if h.Remaining != time.Minute && h.Remaining != 59*time.Second {
				t.Errorf("a permit ends in %v, want the whole TTL from when it was asked for", h.Remaining)
			}
		}
	})
}

func TestALargeRequestIsNotOvertaken(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		holders := []store.PermitRequest{weighing(1, "1"), weighing(1, "2"), weighing(1, "3")}
		for _, req := range holders {
			p.acquire(req, store.Granted)
		}
		large, small, smaller := weighing(3, "large"), weighing(2, "small"), weighing(1, "smaller")
		p.queue(large, small, smaller)
		try := weighing(1, "try")
		try.Queue = false
		p.acquire(try, store.Taken)
		granted := p.await(smaller, small, large)
		wantGranted(t, granted)
		p.release(holders[0], true)
		wantGranted(t, granted)
		p.release(holders[1], true)
		wantGranted(t, granted, "large")
		p.state(4, 2, 2)
		p.release(holders[2], true)
		wantGranted(t, granted)
		p.release(large, true)
		wantGranted(t, granted, "small", "smaller")
		p.state(3, 2, 0)
	})
}

func TestWhoLeavesTheQueueDelaysNobody(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		p.acquire(weighing(1, "holder"), store.Granted)
		dead, large, small, late := weighing(4, "dead"), weighing(4, "large"), weighing(2, "small"), weighing(1, "late")
		p.queue(dead)
		time.Sleep(time.Second)
		p.queue(large, small, late)
		granted := p.await(small, late)
		p.release(large, false)
		wantGranted(t, granted)
		time.Sleep(2 * time.Second) // the dead one's place is lost
		wantGranted(t, granted, "late", "small")
		p.state(4, 3, 0)
	})
}

func TestBargingOvertakesWhatDoesNotFit(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		holder := weighing(3, "holder")
		p.acquire(holder, store.Granted)
		large := weighing(4, "large")
		p.queue(large)
		p.acquire(barging(1, "quick"), store.Granted) // overtakes at once
		two, one, patient := barging(2, "two"), barging(1, "one"), weighing(1, "patient")
		p.queue(two, one, patient)
		granted := p.await(large, two, one, patient)
		p.release(barging(1, "quick"), true)
		wantGranted(t, granted, "one") // from behind two others, since it fits
		p.release(holder, true)
		wantGranted(t, granted, "two")
		p.state(3, 2, 2)
		p.release(one, true)
		p.release(two, true)
		wantGranted(t, granted, "large")
		p.release(large, true)
		wantGranted(t, granted, "patient")
	})
}

func TestRequestsHaveCapacitiesOfTheirOwn(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		for _, id := range []string{"1", "2", "3", "4"} {
			p.acquire(weighing(1, id), store.Granted)
		}
		p.acquire(of(5, weighing(1, "5")), store.Granted)
		small, large := of(2, weighing(1, "small")), of(6, weighing(1, "large"))
		p.queue(small, large) // there would be room for the larger one
		granted := p.await(small, large)
		for _, id := range []string{"1", "2", "3"} {
			p.release(weighing(1, id), true)
			wantGranted(t, granted)
		}
		p.release(weighing(1, "4"), true)
		wantGranted(t, granted, "large", "small")
	})
}

// Whoever asks again while it is queued brings another capacity, which may be room for those behind
// it too.
func TestCapacityChangesWhileQueued(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		p.acquire(weighing(4, "holder"), store.Granted)
		first, second, third, fourth := weighing(2, "first"), weighing(1, "second"), weighing(1, "third"), weighing(1, "fourth")
		p.queue(first, of(8, second), of(8, third), fourth)
		granted := p.await(of(8, second), of(8, third))
		p.queue(of(5, first), of(2, fourth)) // not enough, and less: they keep their places
		wantGranted(t, granted)
		p.acquire(of(6, first), store.Granted)
		wantGranted(t, granted, "second", "third")
		p.state(8, 4, 1)
		if reply := p.acquire(of(9, fourth), store.Granted); reply.Fence == 0 {
			t.Errorf("%+v, want a grant", reply)
		}

		// It is the same for those who are awaited, and for those who barge.
		fifth, sixth := weighing(1, "fifth"), barging(2, "sixth")
		p.queue(fifth, sixth)
		granted = p.await(fifth, sixth)
		p.acquire(of(11, sixth), store.Granted)
		wantGranted(t, granted, "sixth")
		p.acquire(of(12, fifth), store.Granted)
		wantGranted(t, granted, "fifth")
		p.state(12, 7, 0)
	})
}

// A capacity that AwaitPermits brings may be older than one that AcquirePermits brought.
func TestAwaitLeavesTheCapacityAlone(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		holder, waits := weighing(4, "holder"), weighing(2, "waits")
		p.acquire(holder, store.Granted)
		p.queue(waits, of(6, weighing(1, "next")))
		p.queue(of(5, waits))
		granted := p.await(waits, weighing(1, "next"))
		p.acquire(of(7, weighing(1, "holder")), store.Granted) // changes nothing either
		p.release(holder, true)
		wantGranted(t, granted, "next", "waits")
	})
}

func TestMaxWaitingBoundsTheQueue(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		bounded := func(n int, id string) store.PermitRequest {
			req := weighing(1, id)
			req.MaxWaiting = n
			return req
		}
		p.acquire(weighing(4, "holder"), store.Granted)
		p.queue(bounded(2, "first"), bounded(2, "second"))
		for range 2 {
			reply := p.acquire(bounded(2, "third"), store.Taken)
			if !reply.QueueFull || reply.Waiting != 2 || reply.InUse != 4 || reply.Remaining != time.Minute {
				t.Errorf("%+v, want a full queue of 2", reply)
			}
		}
		try := bounded(2, "try")
		try.Queue = false
		if reply := p.acquire(try, store.Taken); reply.QueueFull {
			t.Errorf("%+v, though it did not want to queue", reply)
		}
		p.queue(bounded(2, "second"), bounded(3, "third"), bounded(0, "fourth"))
		p.release(bounded(2, "first"), false)
		p.acquire(bounded(3, "fifth"), store.Taken)

		// Who had a place and lost it is not refused another.
		time.Sleep(3 * time.Second)
		p.queue(bounded(2, "sixth"), bounded(2, "seventh"))
		granted := p.await(bounded(2, "second"))
		p.state(4, 1, 3)
		p.release(weighing(4, "holder"), true)
		wantGranted(t, granted, "second")
	})
}

// What remains is until the first permit ends, and those who wait notice when it does.
func TestPermitsEndOneByOne(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		for i := range 4 {
			req := weighing(1, fmt.Sprint(i))
			req.TTL = time.Duration(40-10*i) * time.Second
			p.acquire(req, store.Granted)
		}
		three, one := weighing(3, "three"), weighing(1, "one")
		reply := p.acquire(three, store.Queued)
		if reply.Remaining != 10*time.Second || reply.InUse != 4 || reply.Waiting != 0 {
			t.Errorf("%+v, want 4 in use for 10s", reply)
		}
		p.queue(one)
		granted := p.await(one, three)
		held, err := p.s.RenewPermits(t.Context(), []store.PermitRef{
			{Name: "n", Key: "k", ID: "3", TTL: 25 * time.Second}, {Name: "n", Key: "k", ID: "one", TTL: time.Hour},
			{Name: "n", Key: "k", ID: "0", TTL: 15 * time.Second}, {Name: "n", Key: "other", ID: "1", TTL: time.Hour},
		})
		if err != nil || !slices.Equal(held, []bool{true, false, true, false}) {
			t.Fatalf("renewed %v, %v", held, err)
		}
		for _, want := range []int{4, 4, 4, 3, 2} { // after 0, 5, 10, 15, 20 s
			p.state(want, want, 2)
			wantGranted(t, granted)
			time.Sleep(5 * time.Second)
		}
		wantGranted(t, granted, "three")
		p.state(4, 2, 1)
		time.Sleep(5 * time.Second)
		wantGranted(t, granted, "one")
		time.Sleep(time.Minute)
		p.state(0, 0, 0)
		held, err = p.s.RenewPermits(t.Context(), []store.PermitRef{{Name: "n", Key: "k", ID: "one", TTL: time.Hour}})
		if err != nil || held[0] {
			t.Errorf("renewed what had expired: %v, %v", held, err)
		}
	})
}

// A permit whose TTL gets shorter is over when that is, and those who wait notice.
func TestAPermitsShorterTTL(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		p.acquire(weighing(4, "holder"), store.Granted)
		granted := p.await(weighing(1, "waits"))
		held, err := p.s.RenewPermits(t.Context(), []store.PermitRef{{Name: "n", Key: "k", ID: "holder", TTL: time.Second}})
		if err != nil || !held[0] {
			t.Fatalf("renewed %v, %v", held, err)
		}
		time.Sleep(time.Second)
		wantGranted(t, granted, "waits")
	})
}

func TestStateListsAtMostMaxHolders(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		for i := range 3 * store.MaxHolders {
			req := of(store.MaxCapacity, weighing(2, fmt.Sprint(i)))
			req.Holder = "holder " + req.ID
			p.acquire(req, store.Granted)
		}
		state := p.state(6*store.MaxHolders, store.MaxHolders, 0)
		seen := map[int64]bool{}
		for _, h := range state.Holders {
			if seen[h.Fence] || h.Weight != 2 || len(h.Meta) < len("holder 0") || h.Remaining != time.Minute {
				t.Errorf("holder %+v", h)
			}
			seen[h.Fence] = true
		}
		if reply := p.acquire(of(store.MaxCapacity, weighing(store.MaxCapacity, "all")), store.Queued); reply.InUse != 6*store.MaxHolders {
			t.Errorf("%+v", reply)
		}
	})
}

func TestListPermits(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		for i := range 100 {
			req := weighing(1+i%4, fmt.Sprint(i))
			req.Key = req.ID
			p.acquire(req, store.Granted)
			req.Name = "other"
			p.acquire(req, store.Granted)
			if i%10 == 0 {
				p.release(req, true)
				req.Name = "n"
				p.release(req, true)
			}
		}
		seen := map[string]int{}
		for state, err := range p.s.ListPermits(t.Context(), "n") {
			if err != nil || len(state.Holders) != 1 || state.Waiting != 0 {
				t.Fatalf("%+v, %v", state, err)
			}
			seen[state.Key] = state.InUse
		}
		if len(seen) != 90 || seen["1"] != 2 || seen["2"] != 3 {
			t.Errorf("%d semaphores are in use, want 90: %v", len(seen), seen)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		last := error(nil)
		n := 0
		for _, err := range p.s.ListPermits(ctx, "n") {
			last = err
			n++
			cancel()
		}
		if !errors.Is(last, context.Canceled) || n >= 90 {
			t.Errorf("%d yielded, and then %v, after the context had ended", n, last)
		}
	}, memstore.WithMaxPermits(1<<18))
}

func TestCloseWakesThoseWhoWaitForPermits(t *testing.T) {
	inPermits(t, func(t *testing.T, p permits) {
		p.acquire(weighing(4, "holder"), store.Granted)
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				if _, err := p.s.AwaitPermits(t.Context(), weighing(1, fmt.Sprint(i))); !errors.Is(err, store.ErrClosed) {
					t.Errorf("AwaitPermits in a store that was closed: %v", err)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		p.s.Close()
		wg.Wait()
		if waited := time.Since(start); waited != 0 {
			t.Errorf("they learnt of it after %v", waited)
		}
		if _, err := p.s.AcquirePermits(t.Context(), weighing(1, "late")); !errors.Is(err, store.ErrClosed) {
			t.Errorf("AcquirePermits: %v", err)
		}
	})
}
