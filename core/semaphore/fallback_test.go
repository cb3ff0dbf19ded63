package semaphore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// withFallback runs a test with a store that can fail, and one to fall back on.
func withFallback(t *testing.T, capacity int, share float64, test func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore)) {
	t.Helper()
	inBubble(t, func(t *testing.T, w *wiretap) {
		local := newWiretap()
		t.Cleanup(func() { _ = local.Close() })
		test(t, w, local, newSemaphore(t, w, capacity, semaphore.WithFallback(local, share)))
	})
}

func TestFallback(t *testing.T) {
	withFallback(t, 5, 0.5, func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore) {
		before := mustAcquire(t, s, 5)
		if before.Fallback() || local.count("acquire") != 0 {
			t.Error("fell back without an outage")
		}
		if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) || local.count("acquire") != 0 {
			t.Errorf("a full semaphore is no outage: %v", err)
		}
		w.fail(errDown, "acquire", "release", "renew")
		one, two := mustAcquire(t, s, 1), mustAcquire(t, s, 1)
		if !one.Fallback() || !two.Fallback() {
			t.Error("permits of an outage do not say so")
		}
		var full *semaphore.BusyError
		_, err := s.TryAcquire(t.Context(), "k")
		if !errors.As(err, &full) || full.Capacity != 2 || full.InUse != 2 || errors.Is(err, outage.ErrUnavailable) {
			t.Errorf("a third of 2.5: %v", err)
		}
		if _, err := s.TryAcquireN(t.Context(), "k", 3); !errors.Is(err, semaphore.ErrInvalidWeight) || !errors.Is(err, outage.ErrUnavailable) {
			t.Errorf("3 of 2.5: %v", err)
		}
		waiter := start(t.Context(), s, 1)
		time.Sleep(ttl * 3)
		wantValid(t, one) // it is renewed there
		mustRelease(t, one)
		if !waiter.got() || !waiter.permit.Fallback() {
			t.Fatalf("one who waits: %v", waiter.err)
		}
		w.fail(nil)
		after := mustAcquire(t, s, 5) // the lease of the first is over
		if after.Fallback() {
			t.Error("still falls back")
		}
		two.ReleaseAsync()
		mustRelease(t, waiter.permit, after)
		wantState(t, s, 0, 0)
		if state, err := local.InspectPermits(t.Context(), "test", "k"); err != nil || state.InUse != 0 || state.Waiting != 0 {
			t.Errorf("the fallback has %+v, %v", state, err)
		}
	})
}

// A store that is full, or misconfigured, is not down: what it has given out still counts.
func TestNoFallbackForAStoreThatIsNotDown(t *testing.T) {
	withFallback(t, 5, 0.5, func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore) {
		for _, fault := range []error{outage.ErrFull, outage.ErrMisconfigured} {
			w.fail(fault, "acquire")
			if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, fault) || local.count("acquire") != 0 {
				t.Errorf("%v: the fallback was asked %d times, %v", fault, local.count("acquire"), err)
			}
		}
	})
}

func TestShares(t *testing.T) {
	for _, c := range []struct {
		capacity int
		share    float64
		want     int
	}{
		{1, 0.001, 1}, {10, 0.1, 1}, {10, 0.19, 1}, {10, 0.3, 3}, {100, 0.29, 29}, {7, 1, 7}, {3, 1.0 / 3, 1},
		{semaphore.MaxCapacity, 1, semaphore.MaxCapacity}, {semaphore.MaxCapacity, 0.5, semaphore.MaxCapacity / 2},
	} {
		withFallback(t, c.capacity, c.share, func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore) {
			w.fail(errDown, "acquire")
			mustRelease(t, mustAcquire(t, s, 1))
			if got := local.capacities()[0]; got != c.want {
				t.Errorf("%v of %d is %d, want %d", c.share, c.capacity, got, c.want)
			}
		})
	}
}

// What the store may have granted before it failed is given back.
func TestFallbackAfterAnUnconfirmedRequest(t *testing.T) {
	withFallback(t, 1, 1, func(t *testing.T, w, _ *wiretap, s *semaphore.Semaphore) {
		w.set(nil, failing(outage.ErrUnconfirmed, "acquire"))
		permit := mustAcquire(t, s, 1)
		if !permit.Fallback() {
			t.Error("the permit is not of the fallback")
		}
		w.set(nil, nil)
		wantState(t, s, 0, 0)
		mustRelease(t, permit)
	})
}

// A request that waits when the store falls silent goes on in the fallback.
func TestFallbackWhileWaiting(t *testing.T) {
	withFallback(t, 1, 1, func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore) {
		permit := mustAcquire(t, s, 1)
		w.set(nil, failing(errDown, "await"))
		call := start(t.Context(), s, 1)
		mustRelease(t, permit)
		if !call.got() || !call.permit.Fallback() {
			t.Fatalf("the call: %v", call.err)
		}
		wantState(t, s, 0, 0)
		mustRelease(t, call.permit)
		if n := local.count("acquire"); n != 1 {
			t.Errorf("the fallback was asked %d times", n)
		}
	})
}

// The end of the caller's own time is no outage.
func TestNoFallbackForACallerWhoHasLeft(t *testing.T) {
	withFallback(t, 1, 1, func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore) {
		ctx, cancel := context.WithCancel(t.Context())
		w.set(nil, func(call string) error {
			if call == "acquire" {
				cancel()
				return outage.ErrUnconfirmed
			}
			return nil
		})
		if _, err := s.Acquire(ctx, "k"); !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v", err)
		}
		if n := local.count("acquire"); n != 0 {
			t.Errorf("the fallback was asked %d times", n)
		}
		wantState(t, s, 0, 0)
	})
}

func TestFallbackThatFailsToo(t *testing.T) {
	withFallback(t, 1, 1, func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore) {
		first, second := errors.Join(errDown, errors.New("first")), errors.Join(errDown, errors.New("second"))
		w.fail(first, "acquire")
		local.fail(second, "acquire")
		if _, err := s.Acquire(t.Context(), "k"); !errors.Is(err, first) || !errors.Is(err, second) {
			t.Errorf("Acquire: %v", err)
		}
	})
}

func TestCapacityOfTheFallbackChanges(t *testing.T) {
	withFallback(t, 2, 0.5, func(t *testing.T, w, _ *wiretap, s *semaphore.Semaphore) {
		w.fail(errDown, "acquire")
		permit := mustAcquire(t, s, 1)
		call := start(t.Context(), s, 1)
		setCapacity(t, s, 4)
		if !call.got() {
			t.Fatalf("2 of 4: %v", call.err)
		}
		mustRelease(t, permit, call.permit)
	})
}

// Close gives back what was had from any store.
func TestCloseReleasesFallbackPermits(t *testing.T) {
	withFallback(t, 1, 1, func(t *testing.T, w, local *wiretap, s *semaphore.Semaphore) {
		other := memstore.New()
		defer other.Close()
		second, err := s.With(semaphore.WithFallback(other, 1))
		if err != nil {
			t.Fatal(err)
		}
		w.fail(errDown, "acquire")
		permits := []*semaphore.Permit{mustAcquire(t, s, 1), mustAcquire(t, second, 1), mustAcquire(t, s.PerInstance(), 1)}
		again, err := second.With(semaphore.WithFallback(local, 1)) // the first's
		if err != nil {
			t.Fatal(err)
		}
		if _, err := again.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Errorf("a second of one: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		for _, p := range permits {
			wantEnded(t, p, semaphore.ErrReleased)
		}
		for _, store := range []semaphore.Store{local, other} {
			if state, err := store.InspectPermits(t.Context(), "test", "k"); err != nil || state.InUse != 0 {
				t.Errorf("%+v, %v", state, err)
			}
		}
	})
}
