package storetest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// permitStormCases are the tests of Semaphores with many goroutines.
var permitStormCases = []testCase[store.Permits]{
	{"concurrent requests are granted up to the capacity", concurrentPermits},
	{"concurrent holders never exceed the capacity", permitStorm},
	{"many withdrawals do not block the queue", leaversStorm},
}

func concurrentPermits(t *testing.T, h Harness[store.Permits]) {
	for _, capacity := range []int{1, 5, 100} {
		p := newPermits(t, h, capacity)
		var (
			wg    sync.WaitGroup
			mu    sync.Mutex
			inUse int
			least = 4 // the smallest weight that was refused
		)
		for i := range capacity + 7 {
			req := p.request(min(1+i%3, capacity))
			wg.Go(func() {
				reply, err := p.store.AcquirePermits(background(), tries(req))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Errorf("AcquirePermits: %v", err)
				case reply.Outcome == store.Granted:
					inUse += req.Weight
				default:
					least = min(least, req.Weight)
				}
			})
		}
		wg.Wait()
		if inUse > capacity || inUse+least <= capacity {
			t.Errorf("%d of %d were granted, and one of weight %d was not", inUse, capacity, least)
		}
		if n := p.inspect().InUse; n != inUse {
			t.Errorf("%d in use, of %d that were granted", n, inUse)
		}
	}
}

// take acquires a permit without a time limit; for goroutines other than the test's.
func (p permitCase) take(req store.PermitRequest) bool {
	reply, err := p.store.AcquirePermits(background(), req)
	if err == nil && reply.Outcome == store.Queued {
		ctx, cancel := context.WithTimeout(background(), longLease)
		defer cancel()
		reply.Grant, err = p.store.AwaitPermits(ctx, req)
		reply.Outcome = store.Granted
	}
	if err != nil || reply.Outcome != store.Granted {
		p.t.Errorf("not granted: %+v, %v", reply, err)
		return false
	}
	return true
}

func permitStorm(t *testing.T, h Harness[store.Permits]) {
	for _, capacity := range []int{1, 5, 100} {
		p := newPermits(t, h, capacity)
		var (
			wg     sync.WaitGroup
			inside atomic.Int64
		)
		has := func(req store.PermitRequest) {
			if n := inside.Add(int64(req.Weight)); n > int64(capacity) {
				t.Errorf("%d in use, of %d", n, capacity)
			}
			runtime.Gosched() // while it is in use
		}
		for i := range 12 {
			wg.Go(func() {
				for round := range 4 {
					// A permit after a wait, and then those that it gets without one.
					req := p.request(min(1+(i+round)%3, capacity))
					if !p.take(req) {
						return
					}
					has(req)
					bag, weight := []store.PermitRef{permitOf(req)}, req.Weight
					for more := range min(capacity, 7) {
						req := tries(p.request(min(1+(i+more)%3, capacity)))
						req.Barging = more%2 == 0
						reply, err := p.store.AcquirePermits(background(), req)
						if err != nil {
							t.Errorf("AcquirePermits: %v", err)
							return
						}
						if reply.Outcome == store.Granted {
							has(req)
							bag, weight = append(bag, permitOf(req)), weight+req.Weight
						}
					}
					inside.Add(int64(-weight))
					held, err := p.store.ReleasePermits(background(), bag)
					for i := range bag {
						if err != nil || !held[i] {
							t.Errorf("ReleasePermits of %d: %v, %v", len(bag), held, err)
							return
						}
					}
				}
			})
		}
		wg.Wait()
		p.state(0, 0)
		p.granted(tries(p.request(capacity)))
	}
}

func leaversStorm(t *testing.T, h Harness[store.Permits]) {
	p := newPermits(t, h, 3)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for round := range 8 {
				req := p.request(1 + (i+round)%3)
				if i%2 == 0 {
					if !p.take(req) {
						return
					}
				} else if reply, err := p.store.AcquirePermits(background(), req); err != nil {
					t.Errorf("AcquirePermits: %v", err)
					return
				} else if reply.Outcome == store.Queued {
					ctx, cancel := context.WithCancel(background())
					wg.Go(cancel)
					_, _ = p.store.AwaitPermits(ctx, req)
				}
				if _, err := p.store.ReleasePermits(background(), []store.PermitRef{permitOf(req)}); err != nil {
					t.Errorf("ReleasePermits: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	p.state(0, 0)
	p.granted(tries(p.request(3)))
}
