package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// Latches is the contract of semaphore.LatchStore.
func Latches(t *testing.T, run Runner) {
	runAll(t, run, []testCase{
		{"a participant counts once", participantCountsOnce},
		{"the last participant opens it", lastParticipantOpens},
		{"an open latch keeps nobody", openLatchKeepsNobody},
		{"everybody who waits is woken", latchWakesAll},
		{"each count is its own", latchCounts},
		{"concurrent participants", latchStorm},
		{"it expires after its last change", latchExpires},
		{"names are apart", latchesApart},
		{"a wait ends with its context", latchWaitEnds},
		{"a closed store is unavailable", closedLatch},
	})
}

// latchCase is a latch that a test uses.
type latchCase struct {
	t     *testing.T
	h     Harness
	store semaphore.LatchStore
	req   semaphore.LatchRequest
}

func newLatch(t *testing.T, h Harness, count int) latchCase {
	return latchCase{t, h, h.Store, semaphore.LatchRequest{Name: unique("latch"), Count: count, TTL: longLease}}
}

func (l latchCase) countDown(participant string, want int) {
	l.t.Helper()
	if n, err := l.store.CountDownLatch(background(), l.req, participant); err != nil || n != want {
		l.t.Fatalf("CountDownLatch: %d, %v, want %d", n, err, want)
	}
}

func (l latchCase) arrived(want int) {
	l.t.Helper()
	if n, err := l.store.InspectLatch(background(), l.req); err != nil || n != want {
		l.t.Fatalf("InspectLatch: %d, %v, want %d", n, err, want)
	}
}

// latchWaiter is somebody who waits for a latch.
type latchWaiter struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan error
}

func (l latchCase) await() latchWaiter {
	ctx, cancel := context.WithCancel(background())
	w := latchWaiter{l.t, cancel, make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.done <- l.store.AwaitLatch(ctx, l.req)
	}()
	l.t.Cleanup(func() {
		cancel()
		<-ended
	})
	l.h.Advance(2 * time.Millisecond)
	return w
}

func (w latchWaiter) ends(want error) {
	w.t.Helper()
	select {
	case err := <-w.done:
		if !errors.Is(err, want) {
			w.t.Fatalf("AwaitLatch: %v, want %v", err, want)
		}
	case <-time.After(eventually):
		w.t.Fatalf("AwaitLatch did not return within %v", eventually)
	}
}

func (w latchWaiter) waits() {
	w.t.Helper()
	select {
	case err := <-w.done:
		w.t.Fatalf("AwaitLatch: %v, before the latch is open", err)
	default:
	}
}

func participantCountsOnce(t *testing.T, h Harness) {
	l := newLatch(t, h, 3)
	l.arrived(0)
	for range 3 {
		l.countDown("one", 1)
	}
	l.countDown("\x00\xff {}", 2)
	l.countDown("one", 2)
	l.arrived(2)
}

func lastParticipantOpens(t *testing.T, h Harness) {
	l := newLatch(t, h, 2)
	w := l.await()
	l.countDown("one", 1)
	l.countDown("one", 1)
	h.Advance(2 * time.Millisecond)
	w.waits()
	l.countDown("two", 2)
	w.ends(nil)
}

func openLatchKeepsNobody(t *testing.T, h Harness) {
	l := newLatch(t, h, 1)
	l.countDown("one", 1)
	l.await().ends(nil)
	l.countDown("more than it takes", 2)
	l.await().ends(nil)
	l.arrived(2)
}

func latchWakesAll(t *testing.T, h Harness) {
	l := newLatch(t, h, 1)
	var ws []latchWaiter
	for range 20 {
		ws = append(ws, l.await())
	}
	l.countDown("one", 1)
	for _, w := range ws {
		w.ends(nil)
	}
}

func latchCounts(t *testing.T, h Harness) {
	l := newLatch(t, h, 2)
	more := l
	more.req.Count = 3
	early, late := l.await(), more.await()
	l.countDown("one", 1)
	more.countDown("two", 2)
	early.ends(nil)
	h.Advance(2 * time.Millisecond)
	late.waits()
	l.countDown("three", 3)
	late.ends(nil)
}

func latchStorm(t *testing.T, h Harness) {
	l := newLatch(t, h, 30)
	w := l.await()
	var wg sync.WaitGroup
	for i := range 90 {
		wg.Go(func() {
			if _, err := l.store.CountDownLatch(background(), l.req, fmt.Sprint(i%30)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.ends(nil)
	l.arrived(30)
}

func latchExpires(t *testing.T, h Harness) {
	l := newLatch(t, h, 2)
	l.req.TTL = 5 * shortLease
	l.countDown("one", 1)
	h.Advance(3 * shortLease)
	l.countDown("two", 2)
	h.Advance(3 * shortLease)
	l.arrived(2)
	h.Advance(3 * shortLease)
	l.arrived(0)
	l.countDown("one", 1)
}

func latchesApart(t *testing.T, h Harness) {
	l := newLatch(t, h, 1)
	other := l
	other.req.Name += "x"
	w := other.await()
	l.countDown("one", 1)
	other.arrived(0)
	w.waits()
	other.countDown("one", 1)
	w.ends(nil)
}

func latchWaitEnds(t *testing.T, h Harness) {
	l := newLatch(t, h, 1)
	gone, stays := l.await(), l.await()
	gone.cancel()
	gone.ends(context.Canceled)
	stays.waits()
	l.countDown("one", 1)
	stays.ends(nil)
	ctx, cancel := context.WithCancel(background())
	cancel()
	_, countErr := l.store.CountDownLatch(ctx, l.req, "two")
	_, inspectErr := l.store.InspectLatch(ctx, l.req)
	for name, err := range map[string]error{"CountDownLatch": countErr, "InspectLatch": inspectErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want the context's error", name, err)
		}
	}
}

func closedLatch(t *testing.T, h Harness) {
	l := newLatch(t, h, 1)
	w := l.await()
	if err := h.Store.Close(); err != nil {
		t.Fatal(err)
	}
	w.ends(core.ErrClosed)
	_, countErr := l.store.CountDownLatch(background(), l.req, "one")
	_, inspectErr := l.store.InspectLatch(background(), l.req)
	for name, err := range map[string]error{
		"CountDownLatch": countErr, "InspectLatch": inspectErr, "AwaitLatch": l.store.AwaitLatch(background(), l.req),
	} {
		if !errors.Is(err, core.ErrClosed) {
			t.Errorf("%s: %v, want core.ErrClosed", name, err)
		}
	}
}
