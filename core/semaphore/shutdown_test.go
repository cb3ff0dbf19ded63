package semaphore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
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

// On real servers, with requests in flight, waiters in the queue, and a waiter of another process.
func TestShutdownOnRedis(t *testing.T) {
	server := redistest.Start(t)
	newProcess := func() (*semaphore.Semaphore, *redisstore.Store) {
		st := must(redisstore.New(server.Client(), redisstore.WithTimeout(5*time.Second)))
		t.Cleanup(func() { _ = st.Close() })
		return newSemaphore(t, leasesOf(t, st), 2), st
	}
	mine, st := newProcess()
	other, _ := newProcess()
	held := mustAcquire(t, mine, 2)
	errs := make(chan error, 16)
	for range 8 {
		go func() {
			_, err := mine.Acquire(context.Background(), "k")
			errs <- err
		}()
	}
	waiting := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; {
			state, err := other.Inspect(t.Context(), "k")
			if err == nil && state.Waiting == n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%+v, %v; want %d to wait", state, err, n)
			}
		}
	}
	waiting(2) // of the eight, which wait in their process
	next := make(chan *semaphore.Permit, 1)
	go func() {
		permit, err := other.AcquireN(context.Background(), "k", 2)
		if err != nil {
			t.Error(err)
		}
		next <- permit
	}()
	waiting(3)
	for range 8 {
		go func() {
			_, err := mine.TryAcquire(context.Background(), "k2") // in flight
			errs <- err
		}()
	}
	ok(t, st.Shutdown(t.Context()))
	if state, err := other.Inspect(t.Context(), "k2"); err != nil || state.InUse != 0 {
		t.Errorf("%+v, %v", state, err)
	}
	for range 16 {
		if err := <-errs; err != nil && !errors.Is(err, store.ErrClosed) && !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Error(err)
		}
	}
	wantEnded(t, held, semaphore.ErrReleased)
	select {
	case permit := <-next:
		mustRelease(t, permit)
	case <-time.After(5 * time.Second): // a lease is six times as long
		t.Fatal("the other process waits for the expiry of the permits")
	}
	ok(t, st.Close())
}
