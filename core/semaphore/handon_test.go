package semaphore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// A process hands permits on among its own waiters, in the order of arrival, and releases each to the
// store after sixteen leases.
func TestHandOn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2)
		held := []*semaphore.Permit{mustAcquire(t, s, 1), mustAcquire(t, s, 1)}
		var (
			mu     sync.Mutex
			order  []int
			inUse  int
			fences = map[int64]bool{held[0].Fence().Number: true, held[1].Fence().Number: true}
			wg     sync.WaitGroup
		)
		const waiters = 94 // 6 times 16 in all
		for i := range waiters {
			wg.Go(func() {
				permit := must(s.Acquire(t.Context(), "k"))
				mu.Lock()
				order = append(order, i)
				if fences[permit.Fence().Number] {
					t.Errorf("the fence %d is another's", permit.Fence().Number)
				}
				fences[permit.Fence().Number] = true
				if inUse++; inUse > 2 {
					t.Errorf("%d in use", inUse)
				}
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				inUse--
				mu.Unlock()
				mustRelease(t, permit)
			})
			synctest.Wait()
		}
		wantState(t, s, 2, 0) // all wait in the process
		mustRelease(t, held...)
		wg.Wait()
		for i := range order {
			if order[i]/2 != i/2 { // two at a time
				t.Fatalf("order %v", order)
			}
		}
		if n := w.Calls(storetest.ReleaseLeases); n < 6 || n > 8 {
			t.Errorf("%d releases in the store for %d permits", n, waiters+2)
		}
		wantState(t, s, 0, 0)
	})
}

// A permit with a reserve is not handed on: other permits may leave too little by then, and a
// request of another process with a smaller reserve goes before its waiters.
func TestATierHandsNothingOn(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		high := newSemaphore(t, w, 3)
		low := must(newSemaphore(t, w, 3).With(semaphore.WithReserve(1)))
		held := []*semaphore.Permit{mustAcquire(t, low, 1), mustAcquire(t, low, 1)}
		beside := mustAcquire(t, high, 1)
		waiting := make(chan *semaphore.Permit, 1)
		go func() { waiting <- must(low.Acquire(context.Background(), "k")) }()
		synctest.Wait()
		mustRelease(t, held[0])
		synctest.Wait()
		wantState(t, high, 2, 1)
		mustRelease(t, beside)
		synctest.Wait()
		mustRelease(t, held[1], <-waiting)
		wantState(t, high, 0, 0)
	})
}

// Another process gets its turn after sixteen leases of a permit, or 50 ms.
func TestHandOnIsBounded(t *testing.T) {
	for name, holding := range map[string]time.Duration{"passes": 0, "time": 20 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				mine, other := newSemaphore(t, w, 1), newSemaphore(t, w, 1)
				first := mustAcquire(t, mine, 1)
				var wg sync.WaitGroup
				before := 0
				for range 40 {
					wg.Go(func() {
						permit := must(mine.Acquire(t.Context(), "k"))
						time.Sleep(holding)
						before++
						mustRelease(t, permit)
					})
					synctest.Wait()
				}
				wg.Go(func() {
					permit := must(other.Acquire(t.Context(), "k"))
					if want := map[string]int{"passes": 15, "time": 3}[name]; before != want {
						t.Errorf("the other process has waited for %d, want %d", before, want)
					}
					mustRelease(t, permit)
				})
				synctest.Wait()
				mustRelease(t, first)
				wg.Wait()
				wantState(t, mine, 0, 0)
			})
		})
	}
}

// A process has up to sixteen places in the store, no more than there is room for, and none without a
// waiter.
func TestPlacesInTheStore(t *testing.T) {
	for capacity, want := range map[int]int{100: 16, 5: 5, 1: 1} {
		inBubble(t, func(t *testing.T, w *wiretap) {
			s, other := newSemaphore(t, w, capacity), newSemaphore(t, w, capacity)
			held := mustAcquire(t, other, capacity)
			var (
				calls   []*pending
				cancels []context.CancelFunc
			)
			for range 40 {
				ctx, cancel := context.WithCancel(t.Context())
				cancels = append(cancels, cancel)
				calls = append(calls, start(ctx, s, 1))
			}
			wantState(t, s, capacity, want)
			if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
				t.Errorf("TryAcquire: %v", err)
			}
			for _, cancel := range cancels[:39] {
				cancel()
			}
			wantState(t, s, capacity, 1)
			mustRelease(t, held)
			if !calls[39].got() {
				t.Fatalf("the last waiter: %v", calls[39].err)
			}
			mustRelease(t, calls[39].permit)
			wantState(t, s, 0, 0)
		})
	}
}

// TryAcquire does not overtake a waiter of the process with another weight.
func TestTryAcquireDoesNotOvertake(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 4)
		held := mustAcquire(t, s, 3)
		waiter := start(t.Context(), s, 3) // in the process
		if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("TryAcquire: %v", err)
		}
		mustRelease(t, held)
		if !waiter.got() {
			t.Fatal(waiter.err)
		}
		mustRelease(t, waiter.permit, mustAcquire(t, s, 1))
		wantState(t, s, 0, 0)
	})
}

func TestForceRelease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s, operator := newSemaphore(t, w, 2, semaphore.WithHolder("stuck")), newSemaphore(t, w, 2)
		kept, permit := mustAcquire(t, s, 1), mustAcquire(t, s, 1)
		time.Sleep(time.Second)
		waiting := start(t.Context(), must(operator.With(semaphore.WithHolder("next"), semaphore.WithReserve(1))), 1)
		time.Sleep(time.Second)
		state := must(operator.Inspect(t.Context(), "k"))
		if len(state.Holders) != 2 || state.Holders[0].Label != "stuck" || state.Holders[0].Age != 2*time.Second {
			t.Fatalf("%+v", state)
		}
		if want := (semaphore.Waiter{Weight: 1, Reserve: 1, Label: "next", Age: time.Second}); len(state.Waiters) != 1 || state.Waiters[0] != want {
			t.Errorf("%+v, want %+v", state.Waiters, want)
		}
		if done, err := operator.ForceRelease(t.Context(), "k", kept.Fence().Number-1); done || err != nil {
			t.Errorf("another fence: %v, %v", done, err)
		}
		if done, err := operator.ForceRelease(t.Context(), "k", permit.Fence().Number); !done || err != nil {
			t.Fatalf("ForceRelease: %v, %v", done, err)
		}
		synctest.Wait()
		wantEnded(t, permit, semaphore.ErrLost)
		wantValid(t, kept)
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		if _, err := operator.ForceRelease(t.Context(), "", 1); !errors.Is(err, semaphore.ErrInvalidKey) {
			t.Errorf("without a key: %v", err)
		}
		mustRelease(t, kept)
		if !waiting.got() {
			t.Fatalf("the waiter: %v", waiting.err)
		}
		mustRelease(t, waiting.permit)
	})
}
