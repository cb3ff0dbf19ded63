package concurrency_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
)

// Requests that wait for ten times the target do not lower an adaptive capacity, and slow handlers do.
func TestWaitsDoNotLowerAnAdaptiveCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			target  = 50 * time.Millisecond
			clients = 300
		)
		st := memstore.New()
		defer st.Close()
		gate, err := semaphore.New(st, "gate", 4, semaphore.WithAdaptiveCapacity(target, 4, 10))
		if err != nil {
			t.Fatal(err)
		}
		work := 20 * time.Millisecond
		var mu sync.Mutex
		var longest time.Duration
		h := concurrency.New(gate, nethttp.Global(), policy.Wait(time.Minute))(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(work) }))
		load := func(duration time.Duration) (lowest int) {
			t.Helper()
			lowest, longest = 1000, 0
			ctx, cancel := context.WithTimeout(t.Context(), duration)
			defer cancel()
			var wg sync.WaitGroup
			for range clients {
				wg.Go(func() {
					for ctx.Err() == nil {
						began := time.Now()
						if w := get(h, "/"); w.Code != http.StatusOK {
							t.Errorf("%d", w.Code)
						}
						capacity, err := gate.Capacity("global")
						mu.Lock()
						if err != nil {
							t.Error(err)
						}
						lowest, longest = min(lowest, capacity), max(longest, time.Since(began))
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			return lowest
		}
		load(10 * time.Second) // until the capacity is that of the ceiling
		if lowest := load(10 * time.Second); lowest != 10 || longest < 10*target {
			t.Errorf("the capacity falls to %d while requests wait for %v", lowest, longest)
		}
		work = 2 * target
		if lowest := load(10 * time.Second); lowest != 4 {
			t.Errorf("the capacity falls to %d while handlers are slow", lowest)
		}
	})
}
