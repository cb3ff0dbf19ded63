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
			releaseAtEnd(mustAcquire(t, s, 1))
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

// A holder that takes a while to stop, longer than its lease, keeps its permit until it has
// stopped. Close waits for it, and for 5 s at most; one that continues keeps its permit until it
// expires.
func TestCloseWaitsForHolders(t *testing.T) {
	const short = time.Second
	inBubble(t, func(t *testing.T, w *wiretap) {
		s, other := newSemaphore(t, w, 1, semaphore.WithTTL(short)), newSemaphore(t, w, 1)
		for _, work := range []time.Duration{4 * time.Second, 5*time.Second + short/4, time.Minute} {
			permit := mustAcquire(t, s, 1)
			go func() {
				<-permit.Context().Done()
				time.Sleep(work)
				if err := permit.Release(t.Context()); err != nil != (work == time.Minute) {
					t.Errorf("Release: %v", err)
				}
			}()
			next := start(t.Context(), other, 1)
			began := time.Now()
			err := s.Close()
			if took := time.Since(began); took != min(work, 5*time.Second) || err != nil != (work > 5*time.Second) {
				t.Errorf("Close: %v after %v", err, took)
			}
			wantEnded(t, permit, semaphore.ErrClosed)
			if work > 5*time.Second && next.returned() {
				t.Error("the permit was released while its holder worked")
			}
			<-next.done
			if took := time.Since(began); took < min(work, 5*time.Second+short/2) || took > min(work, 5*time.Second+short) {
				t.Errorf("the next has a permit after %v", took)
			}
			mustRelease(t, next.permit)
			s = newSemaphore(t, w, 1, semaphore.WithTTL(short))
		}
		time.Sleep(time.Minute)
	})
}
