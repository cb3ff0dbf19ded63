package concurrency_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// Each process has the whole capacity, and asks no store.
func TestPerInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faulty{Permits: memstore.New(), acquire: down, await: down, release: down}
		sems, servers := make([]*semaphore.Semaphore, 2), make([]*server, 2)
		for i := range servers {
			sems[i] = newSemaphore(t, store, 2)
			servers[i] = newServer(t, sems[i], took, policy.PerInstance())
		}
		var inside []<-chan answer
		for _, s := range servers {
			for range 2 {
				inside = append(inside, s.later("/reports/1?take=3s"))
				synctest.Wait()
			}
			s.get("/reports/1").wantFull(t).wantRetryAfter(t, 1)
			s.get("/reports/2").want(t, http.StatusOK)
		}
		for i, sem := range sems {
			if inUse, _ := inspect(t, sem.PerInstance(), "1"); inUse != 2 {
				t.Errorf("process %d: %d in use", i, inUse)
			}
			if _, err := sem.PerInstance().TryAcquire(t.Context(), "1"); !errors.Is(err, semaphore.ErrNotAcquired) {
				t.Errorf("process %d: the semaphore itself: %v", i, err)
			}
		}
		for _, answer := range inside {
			a := <-answer
			a.want(t, http.StatusOK).wantBypassed(t, "")
		}
		for _, s := range servers {
			s.wantError(nil)
		}
		if acquires, releases := store.calls(); acquires != 0 || releases != 0 {
			t.Errorf("the store was asked %d times for a permit, and given back %d", acquires, releases)
		}
	})
}

// It waits, in a bounded queue, as with a store. Two middleware of one semaphore count together.
func TestPerInstanceWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := newSemaphore(t, memstore.New(), 1)
		a := newServer(t, sem, took, policy.PerInstance(), policy.Wait(time.Minute), policy.MaxWaiting(1))
		b := newServer(t, sem, took, policy.MaxWaiting(1), policy.PerInstance(), policy.Wait(time.Minute))
		shared := newServer(t, sem, took)
		began := time.Now()
		first := a.later("/reports/1?take=3s")
		synctest.Wait()
		second := b.later("/reports/1?take=3s")
		synctest.Wait()
		for _, s := range []*server{a, b} {
			s.get("/reports/1").wantFull(t)
		}
		shared.get("/reports/1").want(t, http.StatusOK) // the semaphore on the store is another one
		if took := time.Since(began); took != 0 {
			t.Errorf("the refusals took %v", took)
		}
		(<-first).want(t, http.StatusOK)
		(<-second).want(t, http.StatusOK)
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("one after the other took %v", took)
		}
	})
}
