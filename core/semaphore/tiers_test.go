package semaphore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// lateGrants is a store that returns grants to waiters when tell is closed.
type lateGrants struct {
	store.Store
	tell chan struct{}
}

func (l lateGrants) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	grant, err := l.Store.AwaitLease(ctx, req)
	<-l.tell
	return grant, err
}

// The place in the store's queue is the process's: a grant in flight to a caller that has left is for the
// next one, even if other requests have taken the reserve since it was made.
func TestReserveAndALateGrant(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		st := lateGrants{w, make(chan struct{})}
		s := newSemaphore(t, st, 5)
		low := must(s.With(semaphore.WithReserve(2)))
		held := mustAcquire(t, s, 3)
		ctx, leave := context.WithCancel(t.Context())
		first := start(ctx, low, 1)
		mustRelease(t, held) // to the first, in the store
		held = mustAcquire(t, s, 3)
		second := start(t.Context(), low, 1)
		leave()
		synctest.Wait()
		close(st.tell)
		if !second.got() || first.got() {
			t.Fatalf("the first has a permit: %v, and the second: %v", first.got(), second.got())
		}
		mustRelease(t, held, second.permit)
		wantState(t, s, 0, 0)
	})
}

// Callers that wait for less time than it takes until their process's turn comes do not starve.
func TestImpatientCallersOfATier(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		const reserve, capacity = 2, 3
		impatient := must(newSemaphore(t, w, capacity).With(semaphore.WithReserve(reserve)))
		others := must(newSemaphore(t, w, capacity).With(semaphore.WithReserve(reserve)))
		end := time.Now().Add(time.Minute)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				for time.Now().Before(end) {
					p := must(others.Acquire(t.Context(), "k"))
					time.Sleep(time.Second)
					mustRelease(t, p)
				}
			})
		}
		var got atomic.Int64
		for time.Now().Before(end) {
			time.Sleep(100 * time.Millisecond)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
				defer cancel()
				if p, err := impatient.Acquire(ctx, "k"); err == nil {
					got.Add(1)
					mustRelease(t, p)
				}
			})
		}
		wg.Wait()
		if got.Load() < 10 {
			t.Errorf("%d permits in a minute", got.Load())
		}
	})
}
