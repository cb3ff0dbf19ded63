package memstore_test

import (
	"errors"
	"fmt"
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

// Expired latches leave room without a sweep in the background.
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
