package storetest

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseStorms are the tests of Leases with many goroutines.
var leaseStorms = []leaseTest{
	{"concurrent requests are granted up to the capacity", leaseCase.concurrent},
	{"concurrent holders never exceed the capacity, and fences grow", leaseCase.storm},
	{"many withdrawals do not block the queue", leaseCase.leaversStorm},
}

// some is a request of some weight.
func (l leaseCase) some(i int) store.LeaseRequest {
	if l.kind != aLock {
		return l.request(min(1+i%3, l.capacity))
	}
	if i%4 == 0 {
		return l.whole()
	}
	return l.light()
}

func (l leaseCase) concurrent() {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		inUse int
		least = l.capacity + 1 // the smallest weight that was refused
	)
	for i := range 32 {
		req := l.some(i)
		wg.Go(func() {
			reply, err := l.store.AcquireLease(background(), trying(req))
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				l.t.Errorf("AcquireLease: %v", err)
			case reply.Outcome == store.Granted:
				inUse += req.Weight
			default:
				least = min(least, req.Weight)
			}
		})
	}
	wg.Wait()
	if inUse > l.capacity || inUse+least <= l.capacity {
		l.t.Errorf("%d of %d are in use, and one of weight %d was refused", inUse, l.capacity, least)
	}
	l.state(inUse, 0)
}

// take acquires a lease without a time limit; for goroutines other than the test's.
func (l leaseCase) take(req store.LeaseRequest) (store.Grant, bool) {
	reply, err := l.store.AcquireLease(background(), req)
	if err == nil && reply.Outcome == store.Queued {
		ctx, cancel := context.WithTimeout(background(), longLease)
		defer cancel()
		req.Place = reply.Place
		reply.Grant, err = l.store.AwaitLease(ctx, req)
		reply.Outcome = store.Granted
	}
	if err != nil || reply.Outcome != store.Granted {
		l.t.Errorf("not granted: %+v, %v", reply, err)
		return store.Grant{}, false
	}
	l.learn(req, reply.Grant)
	return reply.Grant, true
}

func (l leaseCase) storm() {
	var (
		wg           sync.WaitGroup
		inside, last atomic.Int64
	)
	has := func(req store.LeaseRequest, grant store.Grant) {
		if n := inside.Add(int64(req.Weight)); n > int64(l.capacity) {
			l.t.Errorf("%d in use, of %d", n, l.capacity)
		}
		if req.Weight == l.capacity && l.kind == aLock {
			if old := last.Swap(grant.LastFence); grant.Fence <= old {
				l.t.Errorf("fence %d, after %d", grant.Fence, old)
			}
		}
		runtime.Gosched() // while it is in use
	}
	for i := range 10 {
		wg.Go(func() {
			for round := range 8 {
				// A lease after a wait, and then leases without one.
				req := l.some(i + round)
				req.Fences = 4
				grant, ok := l.take(req)
				if !ok {
					return
				}
				has(req, grant)
				bag, weight := []store.LeaseRef{l.ref(req)}, req.Weight
				for more := range 2 {
					req := trying(l.some(i + more + 1))
					reply, err := l.store.AcquireLease(background(), req)
					if err != nil {
						l.t.Errorf("AcquireLease: %v", err)
						return
					}
					if reply.Outcome == store.Granted {
						has(req, reply.Grant)
						bag, weight = append(bag, req.Ref(reply.Fence)), weight+req.Weight
					}
				}
				inside.Add(int64(-weight))
				outcomes, err := l.store.ReleaseLeases(background(), bag)
				for i := range bag {
					if err != nil || outcomes[i] != store.Released {
						l.t.Errorf("ReleaseLeases of %d: %v, %v", len(bag), outcomes, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	l.state(0, 0)
	l.granted(trying(l.whole()))
}

func (l leaseCase) leaversStorm() {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for round := range 8 {
				req := l.some(i + round)
				if i%2 == 0 {
					if _, ok := l.take(req); !ok {
						return
					}
				} else if reply, err := l.store.AcquireLease(background(), req); err != nil {
					l.t.Errorf("AcquireLease: %v", err)
					return
				} else if reply.Outcome == store.Queued {
					ctx, cancel := context.WithCancel(background())
					wg.Go(cancel)
					req.Place = reply.Place
					if grant, err := l.store.AwaitLease(ctx, req); err == nil {
						l.learn(req, grant)
					}
				}
				if _, err := l.store.ReleaseLeases(background(), []store.LeaseRef{l.ref(req)}); err != nil {
					l.t.Errorf("ReleaseLeases: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	l.state(0, 0)
	l.granted(trying(l.whole()))
}
