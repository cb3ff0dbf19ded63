package semaphore_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// slowRelease blocks releases until finish is called.
func slowRelease(w *wiretap) (finish func()) {
	slow := make(chan struct{})
	w.Hook(storetest.On(storetest.ReleaseLeases, func() error {
		<-slow
		return nil
	}), nil)
	return func() { close(slow) }
}

func TestReleaseRunsToItsEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		finish := slowRelease(w)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- permit.Release(ctx) }()
		synctest.Wait()
		wantEnded(t, permit, semaphore.ErrReleased) // before the store has replied
		cancel()
		synctest.Wait()
		finish()
		ok(t, <-done)
		wantState(t, s, 0, 0)
	})
}

func TestReleaseIsRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), nil)
		if err := permit.Release(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Fatalf("Release: %v", err)
		}
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		wantState(t, s, 0, 0)
	})
}

func TestReleaseAsync(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		permit.ReleaseAsync()
		wantEnded(t, permit, semaphore.ErrReleased)
		wantState(t, s, 0, 0)
		next := mustAcquire(t, s, 1)
		permit.ReleaseAsync()
		if err := permit.Release(t.Context()); !errors.Is(err, semaphore.ErrReleased) {
			t.Errorf("Release: %v", err)
		}
		wantState(t, s, 1, 0)
		mustRelease(t, next)
	})
}

// A lone release is sent at once, and releases during it are sent in batches.
func TestReleaseAsyncInBatches(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 300)
		permits := make([]*semaphore.Permit, 251)
		for i := range permits {
			permits[i] = mustAcquire(t, s, 1)
		}
		finish := slowRelease(w)
		for i, p := range permits {
			p.ReleaseAsync()
			wantEnded(t, p, semaphore.ErrReleased)
			if i == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		if want := []int{1}; !slices.Equal(w.batches(), want) {
			t.Errorf("batches of %v in flight, want %v", w.batches(), want)
		}
		finish()
		wantState(t, s, 0, 0)
		if want := []int{1, 100, 100, 50}; !slices.Equal(w.batches(), want) {
			t.Errorf("batches of %v, want %v", w.batches(), want)
		}
	})
}

func TestReleaseAsyncIsRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 20)
		permits := make([]*semaphore.Permit, 20)
		for i := range permits {
			permits[i] = mustAcquire(t, s, 1)
		}
		w.Hook(storetest.Failing(store.ErrUnconfirmed, storetest.ReleaseLeases), nil)
		for _, p := range permits {
			p.ReleaseAsync()
		}
		time.Sleep(ttl / 2)
		w.Hook(nil, nil)
		time.Sleep(3 * time.Second)
		wantState(t, s, 0, 0)
		time.Sleep(ttl)
		tries := w.Calls(storetest.ReleaseLeases)
		time.Sleep(10 * ttl)
		if n := w.Calls(storetest.ReleaseLeases); n != tries {
			t.Errorf("released %d times after it was confirmed", n-tries)
		}
	})
}

// A release is not retried after the end of the lease.
func TestReleaseAfterTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		permit := mustAcquire(t, s, 1)
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), nil)
		permit.ReleaseAsync()
		time.Sleep(ttl + 5*time.Second)
		tries := w.Calls(storetest.ReleaseLeases)
		time.Sleep(10 * ttl)
		if n := w.Calls(storetest.ReleaseLeases); n != tries {
			t.Errorf("released %d times after the lease", n-tries)
		}
		wantState(t, s, 0, 0)
	})
}

// The unconfirmed part of a batch is sent again.
func TestUnconfirmedReleasesAreRetried(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, halfStore{w}, 10)
		permits := make([]*semaphore.Permit, 9)
		for i := range permits {
			permits[i] = mustAcquire(t, s, 1)
		}
		finish := slowRelease(w)
		for i, p := range permits {
			p.ReleaseAsync()
			if i == 0 {
				synctest.Wait()
			}
		}
		finish()
		time.Sleep(10 * time.Second)
		wantState(t, s, 0, 0)
		if want := []int{1, 8, 4, 2, 1}; !slices.Equal(w.batches(), want) {
			t.Errorf("batches of %v, want %v", w.batches(), want)
		}
	})
}

// halfStore confirms the first half of each batch of releases.
type halfStore struct{ *wiretap }

func (s halfStore) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	was, err := s.wiretap.ReleaseLeases(ctx, refs)
	if len(refs) == 1 {
		return was, err
	}
	return was[:len(was)/2], store.ErrUnconfirmed
}

func TestCloseFinishesReleases(t *testing.T) {
	for name, finish := range map[string]func(*semaphore.Semaphore, *wiretap) error{
		"Close":    func(s *semaphore.Semaphore, _ *wiretap) error { return s.Close() },
		"Shutdown": func(_ *semaphore.Semaphore, w *wiretap) error { return w.Shutdown(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *wiretap) {
				s := newSemaphore(t, w, 10)
				for range 5 {
					w.Hook(storetest.On(storetest.ReleaseLeases, func() error {
						time.Sleep(100 * time.Millisecond)
						return nil
					}), nil)
					mustAcquire(t, s, 1).ReleaseAsync()
				}
				ok(t, finish(s, w))
				state, err := w.InspectLease(t.Context(), store.SemaphoreKind+"test", "k") // without waiting
				if err != nil || state.InUse != 0 {
					t.Errorf("%+v, %v", state, err)
				}
			})
		})
	}
}
