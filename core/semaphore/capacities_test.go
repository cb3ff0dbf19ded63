package semaphore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func wantCapacities(t *testing.T, s *semaphore.Semaphore, want map[string]int) {
	t.Helper()
	for key, n := range want {
		if got, err := s.Capacity(key); got != n || err != nil {
			t.Errorf("the capacity of %q is %d, %v; want %d", key, got, err, n)
		}
	}
}

func TestCapacitiesOfKeys(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 10)
	ok(t, s.SetCapacities(3, map[string]int{"acme": 16, "acm*": 8, "a*": 5, "trial-*": 1, "x*y": 7}))
	want := map[string]int{
		"acme": 16, "acmes": 8, "acm": 8, "acm*": 8, "ab": 5, "a": 5, "b": 3, "trial-": 1, "trial-7": 1, "trial": 3, "x*y": 7, "xzy": 3,
		"Acme": 3,
	}
	wantCapacities(t, s, want)
	mustRelease(t, must(s.TryAcquireN(t.Context(), "acme", 16)))
	if _, err := s.TryAcquireN(t.Context(), "trial-7", 2); !errors.Is(err, semaphore.ErrInvalidWeight) {
		t.Errorf("2 of 1: %v", err)
	}
	variant := must(s.With(semaphore.WithReserveShare(0.5)))
	wantCapacities(t, variant, want)
	if _, err := variant.TryAcquireN(t.Context(), "acme", 9); !errors.Is(err, semaphore.ErrInvalidWeight) {
		t.Errorf("9 of half of 16: %v", err)
	}

	lengths := make(map[string]int)
	for i := range 17 {
		lengths[strings.Repeat("p", i+1)+"*"] = 1
	}
	for name, c := range map[string]struct {
		base    int
		by      map[string]int
		invalid error
	}{
		"a base of 0":         {0, map[string]int{"b": 2}, semaphore.ErrInvalidCapacity},
		"too large a base":    {store.MaxCapacity + 1, nil, semaphore.ErrInvalidCapacity},
		"a capacity of 0":     {4, map[string]int{"b": 2, "acme": 0}, semaphore.ErrInvalidCapacity},
		"a negative capacity": {4, map[string]int{"b*": -1}, semaphore.ErrInvalidCapacity},
		"too large a one":     {4, map[string]int{"b": store.MaxCapacity + 1}, semaphore.ErrInvalidCapacity},
		"an empty key":        {4, map[string]int{"": 2}, semaphore.ErrInvalidKey},
		"a bare asterisk":     {4, map[string]int{"*": 2}, semaphore.ErrInvalidKey},
		"a long key":          {4, map[string]int{strings.Repeat("k", 1025): 2}, semaphore.ErrInvalidKey},
		"17 lengths":          {4, lengths, semaphore.ErrInvalidKey},
	} {
		if err := s.SetCapacities(c.base, c.by); !errors.Is(err, c.invalid) || strings.Contains(fmt.Sprint(err), "acme") {
			t.Errorf("%s: %v", name, err)
		}
		wantCapacities(t, s, want) // nothing has changed
	}
	delete(lengths, "p*")
	ok(t, s.SetCapacities(4, lengths))
	wantCapacities(t, s, map[string]int{"acme": 4, "p": 4, "pp": 1})
	ok(t, s.SetCapacity(6)) // for all keys
	wantCapacities(t, s, map[string]int{"acme": 6, "pp": 6})
}

func TestCapacityFuncGoesBeforeCapacitiesOfKeys(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	s := newSemaphore(t, st, 10, semaphore.WithCapacityFunc(func(key string) int { return map[string]int{"f": 20, "invalid": -1}[key] }))
	ok(t, s.SetCapacities(3, map[string]int{"f": 1, "invalid": 1, "k*": 2}))
	wantCapacities(t, s, map[string]int{"f": 20, "k": 2, "other": 3})
	if _, err := s.Capacity("invalid"); !errors.Is(err, semaphore.ErrInvalidCapacity) {
		t.Error(err)
	}
}

// Waiting requests of each key use its new capacity, and keep their places.
func TestWaitersWhenCapacitiesOfKeysChange(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		calls := []*pending{start(t.Context(), s, 1), start(t.Context(), s, 1), start(t.Context(), s, 1)}
		ok(t, s.SetCapacities(1, map[string]int{"other": 4}))
		wantGot(t, calls)
		ok(t, s.SetCapacities(1, map[string]int{"k*": 2}))
		wantGot(t, calls, 0)
		if err := s.SetCapacities(1, map[string]int{"k*": 4, "z": 0}); err == nil {
			t.Error("a capacity of 0 is accepted")
		}
		wantGot(t, calls, 0)
		ok(t, s.SetCapacities(1, map[string]int{"k*": 2, "k": 3}))
		wantGot(t, calls, 0, 1)
		ok(t, s.SetCapacities(1, nil))
		mustRelease(t, permit, calls[0].permit)
		wantGot(t, calls, 0, 1)
		mustRelease(t, calls[1].permit)
		wantGot(t, calls, 0, 1, 2)
		mustRelease(t, calls[2].permit)
		wantState(t, s, 0, 0)
	})
}
