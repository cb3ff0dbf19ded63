package servertest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Two processes have different capacities, as during a rollout, and both want more than there is:
// neither starves, and what is in use fits into the larger one. The test is not parallel, since it
// leaves no CPU time to others.
func TestTwoCapacitiesUnderLoad(t *testing.T) {
	server := redistest.Start(t)
	var (
		wg    sync.WaitGroup
		all   most
		turns [2]atomic.Int64
		end   = time.Now().Add(1500 * time.Millisecond)
	)
	for i, capacity := range []int{100, 80} {
		s := newSemaphore(t, newStore(t, connect(t, server.Addr())), capacity)
		for range 40 {
			wg.Go(func() {
				for time.Now().Before(end) {
					p, err := s.AcquireN(t.Context(), "k", 4)
					if err != nil {
						t.Errorf("AcquireN: %v", err)
						return
					}
					turns[i].Add(1)
					all.add(4)
					<-time.After(2 * time.Millisecond)
					all.add(-4)
					if err := p.Release(context.Background()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
	a, b := turns[0].Load(), turns[1].Load()
	t.Logf("%d turns with 100, %d with 80; %d in use at most", a, b, all.max.Load())
	if all.max.Load() > 100 || a > 10*b || b > 10*a {
		t.Errorf("%d turns with 100, %d with 80; %d in use at most", a, b, all.max.Load())
	}
}
