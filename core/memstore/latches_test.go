package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func latch(name string, count int) store.LatchRequest {
	return store.LatchRequest{Name: name, Count: count, TTL: time.Minute}
}

func countDown(t *testing.T, s *memstore.Store, req store.LatchRequest, participant string, want int) {
	t.Helper()
	if got, err := s.CountDownLatch(t.Context(), req, participant); err != nil || got != want {
		t.Fatalf("%s at %s: %d, %v, want %d", participant, req.Name, got, err, want)
	}
}

func arrived(t *testing.T, s *memstore.Store, req store.LatchRequest, want int) {
	t.Helper()
	if got, err := s.InspectLatch(t.Context(), req); err != nil || got != want {
		t.Fatalf("%d at %s, %v, want %d", got, req.Name, err, want)
	}
}

// awaitLatch has a latch awaited by n, and returns what gives the time and the error of the last of
// them.
func awaitLatch(ctx context.Context, s *memstore.Store, req store.LatchRequest, n int) (ended func() (time.Time, error)) {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		last error
		at   time.Time
	)
	for range n {
		wg.Go(func() {
			err := s.AwaitLatch(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			last, at = err, time.Now()
		})
	}
	synctest.Wait()
	return func() (time.Time, error) {
		wg.Wait()
		return at, last
	}
}

func TestALatchOpensForAllWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		three, two, other := latch("l", 3), latch("l", 2), latch("other", 1)
		start := time.Now()
		atThree, atTwo := awaitLatch(t.Context(), s, three, 100), awaitLatch(t.Context(), s, two, 100)
		ctx, cancel := context.WithCancel(t.Context())
		impatient, elsewhere := awaitLatch(ctx, s, three, 1), awaitLatch(ctx, s, other, 1)
		for i, participant := range []string{"a", "a", "b", "a", "c", "c"} {
			countDown(t, s, three, participant, []int{1, 1, 2, 2, 3, 3}[i])
			time.Sleep(time.Second)
		}
		cancel()
		if at, err := atTwo(); err != nil || at.Sub(start) != 2*time.Second {
			t.Errorf("two: %v, after %v", err, at.Sub(start))
		}
		for _, ended := range []func() (time.Time, error){atThree, impatient} {
			if at, err := ended(); err != nil || at.Sub(start) != 4*time.Second {
				t.Errorf("three: %v, after %v", err, at.Sub(start))
			}
		}
		if _, err := elsewhere(); !errors.Is(err, context.Canceled) {
			t.Errorf("another latch: %v", err)
		}
		if err := s.AwaitLatch(t.Context(), three); err != nil {
			t.Errorf("an open latch: %v", err)
		}
		arrived(t, s, other, 0)
	})
}

// A latch lives for its TTL from the last who came; who came again did not change it.
func TestALatchExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		req := latch("l", 3)
		start := time.Now()
		ended := awaitLatch(t.Context(), s, req, 3)
		countDown(t, s, req, "a", 1)
		time.Sleep(40 * time.Second)
		countDown(t, s, req, "b", 2)
		time.Sleep(40 * time.Second)
		countDown(t, s, req, "b", 2)
		time.Sleep(20*time.Second - time.Microsecond)
		arrived(t, s, req, 2)
		time.Sleep(time.Microsecond)
		arrived(t, s, req, 0)
		for i, participant := range []string{"b", "c", "d"} { // those who wait go on waiting, for a new one
			countDown(t, s, req, participant, i+1)
		}
		if at, err := ended(); err != nil || at.Sub(start) != 100*time.Second {
			t.Errorf("%v, after %v", err, at.Sub(start))
		}
	})
}

func TestFullOfParticipants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxParticipants(10))
		for i := range 5 {
			countDown(t, s, latch("shared", 100), fmt.Sprint(i), i+1)
			countDown(t, s, latch(fmt.Sprint("own", i), 100), "a", 1)
		}
		full := func(name string) {
			t.Helper()
			if n, err := s.CountDownLatch(t.Context(), latch(name, 100), "late"); !errors.Is(err, store.ErrFull) || !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("%d, %v, want store.ErrFull", n, err)
			}
		}
		full("shared")
		full("new")
		countDown(t, s, latch("shared", 100), "3", 5) // again
		arrived(t, s, latch("shared", 100), 5)
		time.Sleep(time.Minute)
		for i := range 10 { // what has expired makes room
			countDown(t, s, latch("later", 100), fmt.Sprint(i), i+1)
		}
		full("later")
	})
}

// Latches that are forgotten do not pile up, though nobody sweeps in the background.
func TestExpiredLatchesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxParticipants(100))
		for i := range 10_000 {
			req := latch(fmt.Sprint(i), 100)
			req.TTL = time.Millisecond
			countDown(t, s, req, "a", 1)
			countDown(t, s, req, "b", 2)
			time.Sleep(50 * time.Microsecond) // about forty participants live at a time
		}
	})
}

func TestCloseWakesThoseWhoWaitForALatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New()
		ended := awaitLatch(t.Context(), s, latch("l", 1), 5)
		s.Close()
		if _, err := ended(); !errors.Is(err, store.ErrClosed) {
			t.Errorf("AwaitLatch in a store that was closed: %v", err)
		}
		if _, err := s.CountDownLatch(t.Context(), latch("l", 1), "a"); !errors.Is(err, store.ErrClosed) {
			t.Errorf("CountDownLatch: %v", err)
		}
		if _, err := s.InspectLatch(t.Context(), latch("l", 1)); !errors.Is(err, store.ErrClosed) {
			t.Errorf("InspectLatch: %v", err)
		}
	})
}
