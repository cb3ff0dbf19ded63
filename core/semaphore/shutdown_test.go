package semaphore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// endings are the orderly ends of a Semaphore.
var endings = map[string]func(*semaphore.Semaphore, *wiretap) error{
	"Close":       func(s *semaphore.Semaphore, _ *wiretap) error { return s.Close() },
	"the store's": func(_ *semaphore.Semaphore, w *wiretap) error { return w.Shutdown(context.Background()) },
	"both": func(s *semaphore.Semaphore, w *wiretap) error {
		return errors.Join(w.Shutdown(context.Background()), s.Close())
	},
	"the store's Close": func(_ *semaphore.Semaphore, w *wiretap) error { return w.Close() },
}

// A request that is granted during a shutdown is released before the shutdown returns.
func TestShutdownWaitsForRequestsInFlight(t *testing.T) {
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				s := newSemaphore(t, w, 4)
				w.Hook(nil, storetest.On(storetest.AcquireLease, func() error { // granted, and its reply is in flight
					time.Sleep(100 * time.Millisecond)
					return nil
				}))
				calls := []*pending{start(t.Context(), s, 4), start(t.Context(), s, 4)}
				if err := end(s, w); err != nil {
					t.Errorf("%v", err)
				}
				if name != "the store's Close" {
					wantState(t, s, 0, 0)
				}
				for _, p := range calls {
					if !p.returned() || !errors.Is(p.err, store.ErrClosed) || store.Down(p.err) {
						t.Errorf("%v", p.err)
					}
				}
				if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrClosed) || !errors.Is(err, store.ErrClosed) {
					t.Errorf("TryAcquire: %v", err)
				}
			})
		})
	}
}

// The error has the number of unconfirmed releases, which Close retries.
func TestShutdownReportsUnconfirmedReleases(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 300)
		for range 300 {
			mustAcquire(t, s, 1)
		}
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "300 unconfirmed releases") {
			t.Errorf("Shutdown: %v", err)
		}
		if err := s.Close(); err == nil || !strings.Contains(err.Error(), "300 unconfirmed releases") {
			t.Errorf("Close: %v", err)
		}
		w.Hook(nil, nil)
		time.Sleep(2 * time.Second)
		wantState(t, s, 0, 0)
	})
}
