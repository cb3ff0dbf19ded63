package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// request returns a request for a lock that queues.
func request(key, id string) store.LockRequest {
	return store.LockRequest{Name: "n", Key: key, ID: id, Queue: true, TTL: time.Minute, Fences: 1}
}

func acquire(t *testing.T, s *memstore.Store, req store.LockRequest, want store.AcquireOutcome) store.Grant {
	t.Helper()
	reply, err := s.AcquireLock(t.Context(), req)
	if err != nil || reply.Outcome != want {
		t.Fatalf("%s: %+v, %v, want outcome %d", req.ID, reply, err, want)
	}
	return reply.Grant
}

func release(t *testing.T, s *memstore.Store, req store.LockRequest, want bool) {
	t.Helper()
	held, err := s.ReleaseLock(t.Context(), store.LockRef{Name: req.Name, Key: req.Key, ID: req.ID})
	if err != nil || held != want {
		t.Fatalf("release of %s: %v, %v, want %v", req.ID, held, err, want)
	}
}

// A full store refuses new requests, and nothing else.
func TestFullOfLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxLocks(10))
		first, waits := request("k0", "0"), request("k0", "waits")
		acquire(t, s, first, store.Granted)
		acquire(t, s, waits, store.Queued)
		for i := range 8 {
			acquire(t, s, request(fmt.Sprint("k", i+1), fmt.Sprint(i+1)), store.Granted)
		}
		full := func(req store.LockRequest) {
			t.Helper()
			if reply, err := s.AcquireLock(t.Context(), req); !errors.Is(err, store.ErrFull) || !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("%s: %+v, %v, want store.ErrFull", req.ID, reply, err)
			}
			if grant, err := s.AwaitLock(t.Context(), req); !errors.Is(err, store.ErrFull) {
				t.Fatalf("%s: %+v, %v, want store.ErrFull", req.ID, grant, err)
			}
		}
		full(request("new", "new"))
		full(request("k0", "late"))
		try := request("k0", "try")
		try.Queue = false
		acquire(t, s, try, store.Taken)
		acquire(t, s, first, store.Granted) // again
		acquire(t, s, waits, store.Queued)
		release(t, s, request("new", "nothing"), false)
		release(t, s, first, true)
		grant, err := s.AwaitLock(t.Context(), waits)
		if err != nil || grant.Fence == 0 {
			t.Fatalf("the next in the queue: %+v, %v", grant, err)
		}
		acquire(t, s, request("new", "new"), store.Granted)
		full(request("other", "other"))
		time.Sleep(time.Minute)
		for i := range 10 { // what has expired makes room
			acquire(t, s, request(fmt.Sprint("later", i), fmt.Sprint("later", i)), store.Granted)
		}
		full(request("other", "other"))
	})
}

// Expired locks leave room without a sweep in the background, also in a store of many shards.
func TestExpiredLocksMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, limit := range []int{100, 20_000} {
			s := memstore.New(memstore.WithMaxLocks(limit))
			for i := range 5 * limit {
				req := request(fmt.Sprint("k", i), fmt.Sprint(i))
				req.TTL = time.Millisecond
				acquire(t, s, req, store.Granted)
				time.Sleep(time.Second / time.Duration(200*limit)) // a fifth are live at a time
			}
			for i := range limit {
				acquire(t, s, request(fmt.Sprint("burst", i), fmt.Sprint("burst", i)), store.Granted)
				if i%(limit/10) == 0 {
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
}

func TestTombstonesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxLocks(3))
		released := func(i int) store.LockRequest { return request(fmt.Sprint("k", i), fmt.Sprint(i)) }
		for i := range 1000 { // releasing is never refused
			release(t, s, released(i), false)
		}
		for i := 997; i < 1000; i++ {
			acquire(t, s, released(i), store.Withdrawn)
		}
		acquire(t, s, released(996), store.Granted) // the oldest went first
		time.Sleep(59 * time.Second)
		acquire(t, s, released(999), store.Withdrawn)
		time.Sleep(time.Second)
		acquire(t, s, released(999), store.Granted)
	})
}

// A place is kept for three seconds after its last call, and a reservation for two.
func TestPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		holder, first, second := request("k", "holder"), request("k", "first"), request("k", "second")
		acquire(t, s, holder, store.Granted)
		acquire(t, s, first, store.Queued)
		acquire(t, s, second, store.Queued)
		time.Sleep(2 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := s.AwaitLock(ctx, first); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("AwaitLock: %v", err)
		}
		time.Sleep(2900 * time.Millisecond) // the second place has expired, the first has not
		acquire(t, s, second, store.Queued)
		release(t, s, holder, true)
		granted := time.Now()
		grant, err := s.AwaitLock(t.Context(), second)
		if err != nil || time.Since(granted) != 2*time.Second || grant.Sent.Sub(granted) != 2*time.Second {
			t.Fatalf("after %v: %+v, %v, want a grant after 2s", time.Since(granted), grant, err)
		}
		state, err := s.InspectLock(t.Context(), "n", "k")
		if err != nil || len(state.Holders) != 1 || state.Holders[0].Remaining != time.Minute || state.Waiting != 0 {
			t.Errorf("%+v, %v, want one holder and no waiters", state, err)
		}
	})
}

// Several calls may await a request, as after a retry, and all of them return its grant.
func TestAwaitedBySeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		holder, waits := request("k", "holder"), request("k", "waits")
		acquire(t, s, holder, store.Granted)
		start := time.Now()
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if _, err := s.AwaitLock(ctx, waits); !errors.Is(err, context.Canceled) {
				t.Errorf("the first call: %v", err)
			}
		})
		for range 4 {
			wg.Go(func() {
				if grant, err := s.AwaitLock(t.Context(), waits); err != nil || grant.Fence == 0 || time.Since(start) != 10*time.Second {
					t.Errorf("AwaitLock after %v: %+v, %v", time.Since(start), grant, err)
				}
			})
		}
		synctest.Wait()
		cancel()
		time.Sleep(10 * time.Second)
		release(t, s, holder, true)
		wg.Wait()
	})
}

// However the wait of the first waiter ends, the others are granted the lock when it expires.
func TestExpiryWithoutTheFirstWaiter(t *testing.T) {
	for name, leave := range map[string]func(*memstore.Store, store.LockRequest, context.CancelFunc){
		"it is granted":         func(*memstore.Store, store.LockRequest, context.CancelFunc) {},
		"its wait is cancelled": func(_ *memstore.Store, _ store.LockRequest, cancel context.CancelFunc) { cancel() },
		"it is withdrawn": func(s *memstore.Store, req store.LockRequest, _ context.CancelFunc) {
			_, _ = s.ReleaseLock(context.Background(), store.LockRef{Name: req.Name, Key: req.Key, ID: req.ID})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memstore.New()
				start := time.Now()
				holder := request("k", "holder")
				acquire(t, s, holder, store.Granted)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				first := request("k", "first")
				acquire(t, s, first, store.Queued)
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := s.AwaitLock(ctx, first); err == nil {
						time.Sleep(time.Second)
						_, _ = s.ReleaseLock(t.Context(), store.LockRef{Name: "n", Key: "k", ID: "first"})
					}
				})
				for i := range 3 {
					req := request("k", fmt.Sprint(i))
					acquire(t, s, req, store.Queued)
					wg.Go(func() {
						if _, err := s.AwaitLock(t.Context(), req); err != nil {
							t.Errorf("AwaitLock: %v", err)
						}
						// it is not released, so that the next one waits for its expiry
					})
				}
				synctest.Wait()
				time.Sleep(30 * time.Second)
				leave(s, first, cancel)
				wg.Wait()
				want := 3 * time.Minute
				if name == "it is granted" {
					want += time.Second
				}
				if got := time.Since(start); got != want {
					t.Errorf("the last one had the lock after %v, want %v", got, want)
				}
			})
		})
	}
}

// A renewal with a shorter TTL shortens the lease.
func TestShorterLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		holder, waits := request("k", "holder"), request("k", "waits")
		acquire(t, s, holder, store.Granted)
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.AwaitLock(t.Context(), waits); err != nil || time.Since(start) != 15*time.Second {
				t.Errorf("AwaitLock after %v: %v", time.Since(start), err)
			}
		})
		time.Sleep(10 * time.Second)
		held, err := s.RenewLocks(t.Context(), []store.LockRef{{Name: "n", Key: "k", ID: "holder", TTL: 5 * time.Second}})
		if err != nil || !held[0] {
			t.Errorf("RenewLocks: %v, %v", held, err)
		}
		wg.Wait()
	})
}

// A function for lost holds may call the store.
func TestNotifiedWithoutAMutex(t *testing.T) {
	s := memstore.New()
	holder := request("k", "holder")
	var calls []string
	s.NotifyLost(func(id string) {
		held, err := s.VerifyLock(t.Context(), store.LockRef{Name: "n", Key: "k", ID: id})
		calls = append(calls, fmt.Sprintf("%s: %v, %v", id, held, err))
	})
	grant := acquire(t, s, holder, store.Granted)
	if ended, err := s.ForceUnlock(t.Context(), "n", "k", grant.Fence); !ended || err != nil {
		t.Fatalf("ForceUnlock: %v, %v", ended, err)
	}
	if len(calls) != 1 || calls[0] != "holder: false, <nil>" {
		t.Errorf("called with %q", calls)
	}
}

func TestFences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		last := time.Now().UnixMicro() - 1
		var first store.Grant
		for i := range 2000 {
			req := request("k", fmt.Sprint(i))
			req.Fences = store.MaxFences
			grant := acquire(t, s, req, store.Granted)
			if i == 0 {
				first = grant
			}
			if grant.Fence <= last {
				t.Fatalf("fence %d, after %d", grant.Fence, last)
			}
			last = grant.LastFence
			release(t, s, req, true)
		}
		if first.LastFence-first.Fence != store.MaxFences-1 {
			t.Errorf("the first block is %+v", first)
		}
		// A store that is created later has larger fences.
		if lead := last - time.Now().UnixMicro(); lead > 15_000 {
			t.Errorf("the fences are %d µs ahead of the clock", lead)
		}

		least := last + 1_000_000
		ok(t, s.RaiseFence(t.Context(), "n", "k", least))
		ok(t, s.RaiseFence(t.Context(), "n", "k", 1))
		if grant := acquire(t, s, request("k", "raised"), store.Granted); grant.Fence != least+1 {
			t.Errorf("fence %d, want %d", grant.Fence, least+1)
		}

		time.Sleep(time.Hour)
		if up, err := s.Uptime(t.Context()); up != time.Hour || err != nil {
			t.Errorf("up for %v, %v", up, err)
		}
		s.Close()
		if _, err := s.Uptime(t.Context()); !errors.Is(err, store.ErrClosed) {
			t.Errorf("Uptime of a closed store: %v", err)
		}
		if err := s.RaiseFence(t.Context(), "n", "k", 1); !errors.Is(err, store.ErrClosed) {
			t.Errorf("RaiseFence of a closed store: %v", err)
		}
	})
}

func TestListStopsWithItsContext(t *testing.T) {
	s := memstore.New()
	for i := range 1000 {
		acquire(t, s, request(strings.Repeat("k", i+1), fmt.Sprint(i)), store.Granted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := 0
	for _, err := range s.ListLocks(ctx, "n") {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("ListLocks: %v", err)
			}
			break
		}
		seen++
		cancel()
	}
	if seen == 0 || seen >= 1000 {
		t.Errorf("saw %d locks after the context had ended", seen)
	}
}
