package semaphore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// Concurrent callers never hold more than the capacity, and leave nothing in the store.
func TestNeverMoreThanTheCapacity(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	s := must(semaphore.New(store, "test", 5))
	defer func() { _ = s.Close() }()
	barging := must(s.With(semaphore.WithBarging()))
	var (
		wg     sync.WaitGroup
		inUse  [3]atomic.Int64
		failed atomic.Int64
	)
	for i := range 16 {
		wg.Go(func() {
			for j := range 300 {
				n, key := (i+j)%3+1, (i+j)%len(inUse)
				ctx, cancel := context.WithCancel(t.Context())
				if j%5 == 0 {
					ctx, cancel = context.WithTimeout(ctx, 50*time.Microsecond)
				}
				from := s
				if i%4 == 0 {
					from = barging
				}
				permit, err := from.AcquireN(ctx, fmt.Sprint(key), n)
				if err != nil {
					failed.Add(1)
					cancel()
					continue
				}
				if used := inUse[key].Add(int64(n)); used > 5 {
					t.Errorf("%d in use", used)
				}
				inUse[key].Add(-int64(n))
				if j%2 == 0 {
					permit.ReleaseAsync()
				} else {
					_ = permit.Release(ctx)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	t.Logf("%d of %d failed", failed.Load(), 16*300)
	for key := range inUse { // releases in the background end soon
		mustRelease(t, must(s.AcquireN(t.Context(), fmt.Sprint(key), 5)))
	}
	for state, err := range s.List(t.Context()) {
		t.Errorf("%+v, %v is left", state, err)
	}
}
