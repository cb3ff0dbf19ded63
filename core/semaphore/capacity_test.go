package semaphore_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func setCapacity(t *testing.T, s *semaphore.Semaphore, n int) {
	t.Helper()
	ok(t, s.SetCapacity(n))
	synctest.Wait()
}

func TestMoreCapacityServesWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		var calls []*pending
		for range 5 {
			calls = append(calls, start(t.Context(), s, 1))
		}
		setCapacity(t, s, 4)
		wantGot(t, calls, 0, 1, 2)
		wantState(t, s, 4, 0) // the rest waits in the process
		mustRelease(t, permit)
		wantGot(t, calls, 0, 1, 2, 3)
		mustRelease(t, calls[0].permit)
		for _, p := range calls[1:] {
			if !p.got() {
				t.Fatal(p.err)
			}
			mustRelease(t, p.permit)
		}
		wantState(t, s, 0, 0)
	})
}

// With less capacity than is in use, waiters wait until enough was released.
func TestLessCapacityDrains(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 4)
		held := []*semaphore.Permit{mustAcquire(t, s, 1), mustAcquire(t, s, 1), mustAcquire(t, s, 2)}
		calls := []*pending{start(t.Context(), s, 1), start(t.Context(), s, 2), start(t.Context(), s, 3)}
		setCapacity(t, s, 2)
		if !calls[2].returned() || !errors.Is(calls[2].err, semaphore.ErrInvalidWeight) {
			t.Errorf("a request for 3 of 2: %v", calls[2].err)
		}
		calls = calls[:2]
		wantGot(t, calls)
		wantState(t, s, 4, 2)
		for _, p := range held {
			wantValid(t, p)
		}
		mustRelease(t, held[0], held[1])
		wantGot(t, calls)
		mustRelease(t, held[2])
		wantGot(t, calls, 0)
		mustRelease(t, calls[0].permit)
		wantGot(t, calls, 0, 1)
		mustRelease(t, calls[1].permit)
		wantState(t, s, 0, 0)
		if _, err := s.TryAcquireN(t.Context(), "k", 3); !errors.Is(err, semaphore.ErrInvalidWeight) {
			t.Errorf("3 of 2: %v", err)
		}
	})
}

// A request that exceeds the new capacity leaves the queue, and the next is granted its permit.
func TestLessCapacityRefusesAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 3)
		permit := mustAcquire(t, s, 1)
		calls := []*pending{start(t.Context(), s, 3), start(t.Context(), s, 1)}
		setCapacity(t, s, 2)
		if !calls[0].returned() || !errors.Is(calls[0].err, semaphore.ErrInvalidWeight) {
			t.Errorf("a request for 3 of 2: %v", calls[0].err)
		}
		wantGot(t, calls[1:], 0)
		mustRelease(t, permit, calls[1].permit)
		wantState(t, s, 0, 0)
	})
}

// Changes of the capacity keep the order, and SetCapacity with the same one sends nothing.
func TestPlacesAreKeptWhenTheCapacityChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2)
		permit := mustAcquire(t, s, 2)
		var calls []*pending
		for range 6 {
			calls = append(calls, start(t.Context(), s, 1))
		}
		sent := w.Calls(storetest.AcquireLease)
		setCapacity(t, s, 2)
		if n := w.Calls(storetest.AcquireLease); n != sent {
			t.Errorf("%d requests for the same capacity", n-sent)
		}
		for _, n := range []int{1, 3, 2, 1, 2} {
			setCapacity(t, s, n)
		}
		wantGot(t, calls, 0) // the third of three
		setCapacity(t, s, 1)
		mustRelease(t, permit)
		for i := range calls {
			for j := range calls {
				if calls[j].got() != (j <= i) {
					t.Fatalf("call %d has a permit: %v, when %d have had one", j, calls[j].got(), i+1)
				}
			}
			mustRelease(t, calls[i].permit)
		}
		wantState(t, s, 0, 0)
	})
}

func TestCapacityFunc(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		var vip atomic.Int64
		vip.Store(3)
		s := newSemaphore(t, w, 1, semaphore.WithCapacityFunc(func(key string) int {
			switch key {
			case "vip", "k":
				return int(vip.Load())
			case "negative":
				return -1
			case "too many":
				return store.MaxCapacity + 1
			}
			return 0
		}))
		for key, want := range map[string]int{"vip": 3, "other": 1} {
			if n, err := s.Capacity(key); n != want || err != nil {
				t.Errorf("the capacity of %q is %d, %v; want %d", key, n, err, want)
			}
		}
		sent := w.Calls(storetest.AcquireLease)
		for _, key := range []string{"negative", "too many"} {
			if _, err := s.Capacity(key); !errors.Is(err, semaphore.ErrInvalidCapacity) {
				t.Errorf("Capacity(%q): %v", key, err)
			}
			if _, err := s.Acquire(t.Context(), key); !errors.Is(err, semaphore.ErrInvalidCapacity) {
				t.Errorf("Acquire(%q): %v", key, err)
			}
		}
		if n := w.Calls(storetest.AcquireLease); n != sent {
			t.Errorf("%d requests were sent", n-sent)
		}

		permit := mustAcquire(t, s, 3)
		calls := []*pending{start(t.Context(), s, 1), start(t.Context(), s, 3)}
		vip.Store(4)
		setCapacity(t, s, 1) // sends the requests again
		wantGot(t, calls, 0)
		vip.Store(-1)
		setCapacity(t, s, 1)
		if !calls[1].returned() || !errors.Is(calls[1].err, semaphore.ErrInvalidCapacity) {
			t.Errorf("a waiter: %v", calls[1].err)
		}
		mustRelease(t, permit, calls[0].permit)
		wantState(t, s, 0, 0)
		if want := []int{3, 3, 4}; !slices.Equal(w.capacities(), want) {
			t.Errorf("sent with %v, want %v", w.capacities(), want)
		}
	})
}

// The store is unavailable when the capacity changes.
func TestOutageWhenTheCapacityChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		call := start(t.Context(), s, 1)
		w.Hook(storetest.Failing(errDown, storetest.AcquireLease), nil)
		setCapacity(t, s, 2)
		if !call.returned() || !errors.Is(call.err, errDown) {
			t.Errorf("a waiter: %v", call.err)
		}
		wantState(t, s, 1, 0)
		mustRelease(t, permit)
	})
}
