package semaphore_test

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// leaves returns how much of its capacity a tier leaves to others.
func leaves(t *testing.T, tier *semaphore.Semaphore) int {
	t.Helper()
	capacity := must(tier.Capacity("empty"))
	for n := capacity; n > 0; n-- {
		if p, err := tier.TryAcquireN(t.Context(), "empty", n); err == nil {
			mustRelease(t, p)
			return capacity - n
		} else if !errors.Is(err, semaphore.ErrInvalidWeight) {
			t.Fatal(err)
		}
	}
	t.Fatal("the tier has nothing")
	return 0
}

func TestReserveShareIsRoundedDown(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	for _, c := range []struct {
		capacity int
		share    float64
		want     int
	}{
		{10, 0.3, 3}, {100, 0.29, 29}, {100, 0.07, 7}, {1000, 0.001, 1}, {3, 1.0 / 3, 1}, {10, 1 - 0.7, 3},
		{10, 0.39, 3}, {10, 0.99, 9}, {20, 0.6, 12}, {30, 0.6, 18},
		{3, 0.3, 0}, {10, 0.09, 0}, {10, 0, 0}, // no tier
		{1, 0.99, 0}, {2, 0.99, 1}, {10, 0.9999999999, 9}, // one permit is left
	} {
		t.Run(fmt.Sprint(c.share, " of ", c.capacity), func(t *testing.T) {
			s := newSemaphore(t, st, c.capacity)
			if got := leaves(t, must(s.With(semaphore.WithReserveShare(c.share)))); got != c.want {
				t.Errorf("the reserve is %d, want %d", got, c.want)
			}
		})
	}
	s := newSemaphore(t, st, store.MaxCapacity)
	half := must(s.With(semaphore.WithReserveShare(0.5)))
	_, above := half.TryAcquireN(t.Context(), "k", store.MaxCapacity/2+1)
	permit, err := half.TryAcquireN(t.Context(), "k", store.MaxCapacity/2)
	if err != nil || !errors.Is(above, semaphore.ErrInvalidWeight) {
		t.Fatalf("half of the largest capacity: %v, %v", err, above)
	}
	mustRelease(t, permit)
}

func TestReserveShareOutOfItsRange(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 10)
	for name, opts := range map[string][]semaphore.Option{
		"negative":         {semaphore.WithReserveShare(-0.01)},
		"all":              {semaphore.WithReserveShare(1)},
		"more than all":    {semaphore.WithReserveShare(1.5)},
		"no number":        {semaphore.WithReserveShare(math.NaN())},
		"infinite":         {semaphore.WithReserveShare(math.Inf(1))},
		"with a reserve":   {semaphore.WithReserve(1), semaphore.WithReserveShare(0.1)},
		"before a reserve": {semaphore.WithReserveShare(0.1), semaphore.WithReserve(0)},
	} {
		if _, err := semaphore.New(st, "test", 10, opts...); err == nil {
			t.Errorf("%s: New accepts it", name)
		}
		if _, err := s.With(opts...); err == nil {
			t.Errorf("%s: With accepts it", name)
		}
	}
}

// The later of two calls of With replaces the reserve of the earlier one.
func TestVariantOfAReserve(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	share := must(newSemaphore(t, st, 10).With(semaphore.WithReserveShare(0.5)))
	fixed := must(share.With(semaphore.WithReserve(2)))
	again := must(fixed.With(semaphore.WithReserveShare(0.3)))
	for _, c := range []struct {
		s    *semaphore.Semaphore
		want int
	}{{share, 5}, {fixed, 2}, {again, 3}, {must(again.With(semaphore.WithMaxWaiting(1))), 3}} {
		if got := leaves(t, c.s); got != c.want {
			t.Errorf("the reserve is %d, want %d", got, c.want)
		}
	}
}

func TestReserveShareOfWithCapacityFunc(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 10, semaphore.WithReserveShare(0.5), semaphore.WithCapacityFunc(func(key string) int {
		return map[string]int{"large": 100, "one": 1}[key]
	}))
	for key, most := range map[string]int{"large": 50, "small": 5, "one": 1} {
		if _, err := s.TryAcquireN(t.Context(), key, most+1); !errors.Is(err, semaphore.ErrInvalidWeight) {
			t.Errorf("%s: %d: %v", key, most+1, err)
		}
		mustRelease(t, must(s.TryAcquireN(t.Context(), key, most)))
	}
}

// The reserve of waiting requests follows the capacity.
func TestReserveShareFollowsTheCapacity(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 10)
		low := must(s.With(semaphore.WithReserveShare(0.5)))
		held := []*semaphore.Permit{mustAcquire(t, s, 5)}
		calls := []*pending{start(t.Context(), low, 1), start(t.Context(), low, 2), start(t.Context(), low, 6)}
		if !errors.Is(calls[2].err, semaphore.ErrInvalidWeight) {
			t.Errorf("6 of 5: %v", calls[2].err)
		}
		calls = calls[:2]
		wantGot(t, calls)
		setCapacity(t, s, 12) // 6 for the tier, and 5 are in use
		wantGot(t, calls, 0)
		setCapacity(t, s, 20)
		wantGot(t, calls, 0, 1)
		mustRelease(t, calls[0].permit, calls[1].permit)
		held = append(held, mustAcquire(t, s, 5))
		calls = []*pending{start(t.Context(), low, 3), start(t.Context(), low, 6)}
		setCapacity(t, s, 10) // 5 for the tier
		if !calls[1].returned() || !errors.Is(calls[1].err, semaphore.ErrInvalidWeight) {
			t.Errorf("a request for 6 of 5: %v", calls[1].err)
		}
		mustRelease(t, held[0])
		wantGot(t, calls[:1])
		mustRelease(t, held[1])
		wantGot(t, calls[:1], 0)
		mustRelease(t, calls[0].permit)
		wantState(t, s, 0, 0)
	})
}

// Requests whose reserve has changed stand where they stood: before later ones of their tier, also
// of another process, and behind those with a smaller reserve.
func TestPlacesAreKeptWhenTheReserveChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		one, two := newSemaphore(t, w, 10), newSemaphore(t, w, 10)
		all := func(n int) {
			setCapacity(t, one, n)
			setCapacity(t, two, n)
		}
		low := []*semaphore.Semaphore{must(one.With(semaphore.WithReserveShare(0.5))), must(two.With(semaphore.WithReserveShare(0.5)))}
		held := mustAcquire(t, one, 10)
		var calls []*pending
		for i := range 40 { // more than there are places for
			calls = append(calls, start(t.Context(), low[i%2], 1))
		}
		all(6) // a reserve of 3
		all(2) // of 1
		late := start(t.Context(), low[0], 1)
		high := start(t.Context(), two, 1)
		mustRelease(t, held)
		if !high.got() {
			t.Fatalf("the request of the higher tier has no permit: %v", high.err)
		}
		wantGot(t, calls) // one of two is in use, and one is left to others
		mustRelease(t, high.permit)
		for i, p := range calls {
			if !p.got() {
				t.Fatalf("request %d has no permit: %v", i, p.err)
			}
			wantGot(t, append(calls[i+1:], late))
			mustRelease(t, p.permit)
		}
		if !late.got() {
			t.Fatal("the last one has no permit")
		}
		mustRelease(t, late.permit)
		wantState(t, one, 0, 0)
	})
}

// The store is unavailable when the reserve of a waiting request changes.
func TestOutageWhenTheReserveChanges(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 10)
		low := must(s.With(semaphore.WithReserveShare(0.5)))
		held := mustAcquire(t, s, 10)
		call := start(t.Context(), low, 1)
		w.Hook(storetest.Failing(errDown, storetest.AcquireLease, storetest.ReleaseLeases), nil)
		setCapacity(t, s, 4)
		if !call.returned() || !errors.Is(call.err, errDown) {
			t.Errorf("a waiter: %v", call.err)
		}
		w.Hook(nil, nil)
		mustRelease(t, held)
		time.Sleep(5 * time.Second) // the release of the earlier request is repeated
		wantState(t, s, 0, 0)
		mustRelease(t, must(low.TryAcquireN(t.Context(), "k", 2)))
		wantState(t, s, 0, 0)
	})
}
