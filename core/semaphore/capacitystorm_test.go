package semaphore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
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
	tier := must(s.With(semaphore.WithReserve(2)))
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
					from = tier
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

// Processes whose goroutines wait, time out and change the capacity: what is in use never exceeds
// the largest capacity, no call waits without end, and nothing is left in the store.
func TestStorm(t *testing.T) {
	for seed := range uint64(20) {
		inBubble(t, func(t *testing.T, w *wiretap) {
			random := rand.New(rand.NewPCG(seed, 1))
			var (
				mu            sync.Mutex
				inUse, grants int
				wg            sync.WaitGroup
			)
			roll := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}
			for range 3 {
				s := newSemaphore(t, w, 4, semaphore.WithTTL(100*time.Millisecond))
				tiers := []*semaphore.Semaphore{s, s, must(s.With(semaphore.WithReserve(1))), must(s.With(semaphore.WithReserveShare(0.4)))}
				wg.Go(func() {
					for range 10 {
						time.Sleep(time.Duration(roll(100)) * time.Millisecond)
						ok(t, s.SetCapacity(3+roll(3)))
					}
				})
				for range 10 {
					wg.Go(func() {
						for range 20 {
							time.Sleep(time.Duration(roll(30)) * time.Millisecond)
							ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+roll(300))*time.Millisecond)
							from := tiers[roll(len(tiers))]
							acquire := []func(context.Context, string, int) (*semaphore.Permit, error){from.AcquireN, from.AcquireN, from.TryAcquireN}[roll(3)]
							permit, err := acquire(ctx, "k", 1+roll(2))
							if err != nil {
								cancel()
								continue
							}
							mu.Lock()
							grants++
							if inUse += permit.Weight(); inUse > 5 {
								t.Errorf("%d in use", inUse)
							}
							mu.Unlock()
							time.Sleep(time.Duration(roll(20)) * time.Millisecond)
							mu.Lock()
							inUse -= permit.Weight()
							mu.Unlock()
							if roll(2) == 0 {
								permit.ReleaseAsync()
							} else if err := permit.Release(ctx); err != nil {
								t.Errorf("Release: %v", err)
							}
							cancel()
						}
					})
				}
			}
			wg.Wait()
			wantState(t, newSemaphore(t, w, 1), 0, 0)
			if grants < 50 {
				t.Errorf("only %d grants", grants)
			}
		})
	}
}
