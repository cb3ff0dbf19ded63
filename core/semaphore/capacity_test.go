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
	if err := s.SetCapacity(n); err != nil {
		t.Fatalf("SetCapacity: %v", err)
	}
	synctest.Wait()
}

// sized runs a test on a Semaphore whose capacity is its own.
func sized(t *testing.T, capacity int, test func(t *testing.T, w *wiretap, s *semaphore.Semaphore)) {
	t.Helper()
	inBubble(t, func(t *testing.T, w *wiretap) { test(t, w, newSemaphore(t, w, capacity)) })
}

func TestMoreCapacityServesThoseWhoWait(t *testing.T) {
	sized(t, 1, func(t *testing.T, _ *wiretap, s *semaphore.Semaphore) {
		permit := mustAcquire(t, s, 1)
		var calls []*pending
		for range 5 {
			calls = append(calls, start(t.Context(), s, 1))
		}
		setCapacity(t, s, 4)
		wantGot(t, calls, 0, 1, 2)
		wantState(t, s, 4, 2)
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

// Below what is in use it drains.
func TestLessCapacityDrains(t *testing.T) {
	sized(t, 4, func(t *testing.T, _ *wiretap, s *semaphore.Semaphore) {
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

// A request that is withdrawn lets the next one have its place.
func TestLessCapacityUncoversTheNext(t *testing.T) {
	sized(t, 3, func(t *testing.T, _ *wiretap, s *semaphore.Semaphore) {
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

// The order stays, however often the capacity changes, and a change that is none sends nothing.
func TestPlacesAreKeptWhenTheCapacityChanges(t *testing.T) {
	sized(t, 2, func(t *testing.T, w *wiretap, s *semaphore.Semaphore) {
		permit := mustAcquire(t, s, 2)
		var calls []*pending
		for range 6 {
			calls = append(calls, start(t.Context(), s, 1))
		}
		asked := w.Calls(storetest.AcquirePermits)
		setCapacity(t, s, 2)
		if n := w.Calls(storetest.AcquirePermits); n != asked {
			t.Errorf("asked %d times for nothing", n-asked)
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

// During a rollout each process has its own capacity: what is in use never exceeds the largest, and
// whoever has a smaller one waits.
func TestProcessesWithDifferentCapacities(t *testing.T) {
	making(t, func(t *testing.T, make maker) {
		before, after := make(t, 2), make(t, 4)
		held := []*semaphore.Permit{mustAcquire(t, after, 1), mustAcquire(t, after, 1), mustAcquire(t, after, 1)}
		if _, err := before.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("a fourth of two: %v", err)
		}
		calls := []*pending{start(t.Context(), before, 1), start(t.Context(), after, 1)}
		mustRelease(t, held[0])
		wantGot(t, calls) // in order, though there is room for the second
		mustRelease(t, held[1])
		wantGot(t, calls, 0, 1)
		wantState(t, before, 3, 0)
		mustRelease(t, held[2], calls[0].permit, calls[1].permit)
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
		asked := w.Calls(storetest.AcquirePermits)
		for _, key := range []string{"negative", "too many"} {
			if _, err := s.Capacity(key); !errors.Is(err, semaphore.ErrInvalidCapacity) {
				t.Errorf("Capacity(%q): %v", key, err)
			}
			if _, err := s.Acquire(t.Context(), key); !errors.Is(err, semaphore.ErrInvalidCapacity) {
				t.Errorf("Acquire(%q): %v", key, err)
			}
		}
		if n := w.Calls(storetest.AcquirePermits); n != asked {
			t.Errorf("%d requests were sent", n-asked)
		}

		permit := mustAcquire(t, s, 3)
		calls := []*pending{start(t.Context(), s, 1), start(t.Context(), s, 3)}
		vip.Store(4)
		setCapacity(t, s, 1) // asks again
		wantGot(t, calls, 0)
		vip.Store(-1)
		setCapacity(t, s, 1)
		if !calls[1].returned() || !errors.Is(calls[1].err, semaphore.ErrInvalidCapacity) {
			t.Errorf("one who waits: %v", calls[1].err)
		}
		mustRelease(t, permit, calls[0].permit)
		wantState(t, s, 0, 0)
		if want := []int{3, 3, 3, 4, 4}; !slices.Equal(w.capacities(), want) {
			t.Errorf("sent with %v, want %v", w.capacities(), want)
		}
	})
}

// The store does not answer when it is told of the new capacity.
func TestOutageWhenTheCapacityChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		call := start(t.Context(), s, 1)
		w.Hook(storetest.Failing(errDown, storetest.AcquirePermits), nil)
		setCapacity(t, s, 2)
		if !call.returned() || !errors.Is(call.err, errDown) {
			t.Errorf("one who waits: %v", call.err)
		}
		wantState(t, s, 1, 0)
		mustRelease(t, permit)
	})
}
