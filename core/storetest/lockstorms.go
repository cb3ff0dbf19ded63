package storetest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// take acquires the lock without a time limit; for goroutines other than the test's.
func (l lockCase) take(req store.LockRequest) (store.Grant, bool) {
	reply, err := l.store.AcquireLock(background(), req)
	if err == nil && reply.Outcome == store.Queued {
		ctx, cancel := context.WithTimeout(background(), longLease)
		defer cancel()
		reply.Grant, err = l.store.AwaitLock(ctx, req)
		reply.Outcome = store.Granted
	}
	if err != nil || reply.Outcome != store.Granted {
		l.t.Errorf("not granted: %+v, %v", reply, err)
		return store.Grant{}, false
	}
	return reply.Grant, true
}

func (l lockCase) giveBack(req store.LockRequest) {
	if held, err := l.store.ReleaseLock(background(), holdOf(req)); err != nil || !held {
		l.t.Errorf("ReleaseLock: %v, %v", held, err)
	}
}

func storm(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	var (
		wg     sync.WaitGroup
		inside atomic.Int64
		last   atomic.Int64
	)
	for range 8 {
		wg.Go(func() {
			for range 15 {
				req := l.exclusive()
				req.Fences = 4
				grant, ok := l.take(req)
				if !ok {
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d have the lock", n)
				}
				if old := last.Swap(grant.LastFence); grant.Fence <= old {
					t.Errorf("fence %d, after %d", grant.Fence, old)
				}
				inside.Add(-1)
				l.giveBack(req)
			}
		})
	}
	wg.Wait()
	if state := l.inspect(); len(state.Holders) != 0 || state.Waiting != 0 {
		t.Errorf("after the storm: %+v", state)
	}
}

func readersStorm(t *testing.T, h Harness[store.Locks]) {
	l := newLock(t, h)
	var (
		wg               sync.WaitGroup
		readers, writers atomic.Int64
	)
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				req, mine := l.exclusive(), &writers
				if i%4 != 0 {
					req, mine = l.shared(), &readers
				}
				if _, ok := l.take(req); !ok {
					return
				}
				mine.Add(1)
				if w, r := writers.Load(), readers.Load(); w > 1 || w == 1 && r > 0 {
					t.Errorf("%d writers and %d readers have the lock", w, r)
				}
				mine.Add(-1)
				l.giveBack(req)
			}
		})
	}
	wg.Wait()
	if state := l.inspect(); len(state.Holders) != 0 || state.Waiting != 0 {
		t.Errorf("after the storm: %+v", state)
	}
}
