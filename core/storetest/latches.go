package storetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Latches is the contract of store.Latches.
func Latches[S store.Latches](t *testing.T, run Runner[S]) {
	runAll(t, run, []testCase[store.Latches]{
		{"a latch counts its participants", countsParticipants},
		{"a participant counts once", countsOnce},
		{"the last participant wakes all waiters", lastWakesAll},
		{"an open latch does not block", openLatch},
		{"every waiter has its own count", latchCounts},
		{"the largest count", largestCount},
		{"latches with other names are separate", latchesApart},
		{"participants may have any bytes", oddParticipants},
		{"many participants at once count once each", concurrentParticipants},
		{"a latch is kept for its TTL after the last participant", latchLives},
		{"a repeated participant does not extend the TTL", repeatProlongsNothing},
		{"an expired latch is replaced by a new one", latchExpires},
		{"a wait outlasts the expiry of the latch", waitOutlivesLatch},
		{"the end of a wait does not end others", endedLatchWait},
		{"a cancelled context is its error", cancelledLatch},
		{"a store after shutdown refuses new requests", shutDownLatch},
		{"a closed store is unavailable", closedLatch},
	})
}

// latchCase is a latch of a test.
type latchCase struct {
	t     *testing.T
	h     Harness[store.Latches]
	store store.Latches
	name  string
	ttl   time.Duration
}

func newLatch(t *testing.T, h Harness[store.Latches]) latchCase {
	return latchCase{t, h, h.Store, unique("latch"), longLease}
}

func (l latchCase) request(count int) store.LatchRequest {
	return store.LatchRequest{Name: l.name, Count: count, TTL: l.ttl}
}

// countDown is a participant of a latch of three.
func (l latchCase) countDown(participant string, want int) {
	l.t.Helper()
	if arrived := l.arrives(participant); arrived != want {
		l.t.Fatalf("CountDownLatch: %d, want %d", arrived, want)
	}
}

func (l latchCase) arrives(participant string) int {
	l.t.Helper()
	arrived, err := l.store.CountDownLatch(background(), l.request(3), participant)
	if err != nil {
		l.t.Fatalf("CountDownLatch: %v", err)
	}
	return arrived
}

func (l latchCase) arrived(want int) {
	l.t.Helper()
	if arrived := l.inspect(); arrived != want {
		l.t.Fatalf("InspectLatch: %d, want %d", arrived, want)
	}
}

func (l latchCase) inspect() int {
	l.t.Helper()
	arrived, err := l.store.InspectLatch(background(), l.request(3))
	if err != nil {
		l.t.Fatalf("InspectLatch: %v", err)
	}
	return arrived
}

// latchWaiter is a waiter for a latch.
type latchWaiter struct {
	*call
	l latchCase
}

// await starts a waiter, which ends with the test.
func (l latchCase) await(count int) *latchWaiter {
	await := func(ctx context.Context) (store.Grant, error) {
		return store.Grant{}, l.store.AwaitLatch(ctx, l.request(count))
	}
	return &latchWaiter{begin(l.t, l.h.Advance, "AwaitLatch", func() any { return l.inspect() }, await), l}
}

// opens waits for the end of a wait for a latch that is kept for a period since it began. It
// returns true if the latch may have expired before the waiter checked it, so that the test is
// inconclusive.
func (w *latchWaiter) opens(began time.Time) (late bool) {
	w.l.t.Helper()
	select {
	case <-w.done:
	case <-time.After(eventually):
	}
	select {
	case <-w.done:
		w.fails(nil)
		return false
	default:
		return expect(w.l.t, "AwaitLatch of an open latch returned", false, true, began, w.l.ttl)
	}
}

// waiting checks that all of the waiters still wait.
func (l latchCase) waiting(ws ...*latchWaiter) {
	l.t.Helper()
	l.h.Advance(2 * time.Millisecond)
	for _, w := range ws {
		w.waits()
	}
}

func countsParticipants(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	l.arrived(0)
	for i := range 5 { // beyond the count, too
		l.countDown(fmt.Sprint("p", i), i+1)
		l.arrived(i + 1)
	}
}

func countsOnce(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	l.countDown("a", 1)
	l.countDown("a", 1)
	l.countDown("b", 2)
	w := l.await(3)
	for range 3 {
		l.countDown("a", 2)
		l.countDown("b", 2)
	}
	l.waiting(w)
	l.arrived(2)
	l.countDown("c", 3)
	w.fails(nil)
	l.countDown("c", 3)
}

func lastWakesAll(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	early := l.await(3) // before any participant
	l.countDown("a", 1)
	waiters := []*latchWaiter{early, l.await(3), l.await(3)}
	l.waiting(waiters...)
	l.countDown("b", 2)
	waiters = append(waiters, l.await(3))
	l.waiting(waiters...)
	before := time.Now()
	l.countDown("c", 3)
	for _, w := range waiters {
		w.fails(nil)
	}
	if d := time.Since(before); d > eventually/2 {
		t.Errorf("they were woken after %v", d)
	}
}

func openLatch(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	for i, participant := range []string{"a", "b", "c", "d"} {
		l.countDown(participant, i+1)
		if i >= 2 {
			l.await(3).fails(nil)
			l.await(3).fails(nil)
		}
	}
	l.arrived(4)
}

func latchCounts(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	four, two, one, three := l.await(4), l.await(2), l.await(1), l.await(3)
	l.waiting(four, two, one, three)
	l.countDown("a", 1)
	one.fails(nil)
	l.waiting(four, two, three)
	l.countDown("b", 2)
	two.fails(nil)
	l.await(2).fails(nil)
	l.await(1).fails(nil)
	l.waiting(four, three)
	l.countDown("c", 3)
	three.fails(nil)
	l.waiting(four)
	l.countDown("d", 4)
	four.fails(nil)
}

func largestCount(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	req := l.request(store.MaxParticipants)
	if arrived, err := l.store.CountDownLatch(background(), req, "a"); err != nil || arrived != 1 {
		t.Errorf("CountDownLatch: %d, %v", arrived, err)
	}
	if arrived, err := l.store.InspectLatch(background(), req); err != nil || arrived != 1 {
		t.Errorf("InspectLatch: %d, %v", arrived, err)
	}
	w := l.await(store.MaxParticipants)
	l.countDown("b", 2)
	l.waiting(w)
}

func latchesApart(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	w := l.await(2)
	l.countDown("a", 1)
	for _, name := range []string{l.name + "a", l.name + "-", l.name[1:], l.name[:len(l.name)-1]} {
		other := l
		other.name = name
		other.arrived(0)
		other.countDown("b", 1)
	}
	for _, kind := range []leaseKind{aLock, aSemaphore} {
		held := newLease(t, as[store.Leases](t, h), kind)
		held.name = kind.prefix + l.name
		for _, held.key = range []string{"k", l.name, "a"} {
			held.granted(held.whole())
		}
	}
	l.waiting(w)
	l.arrived(1)
	l.countDown("b", 2)
	w.fails(nil)
}

func oddParticipants(t *testing.T, h Harness[store.Latches]) {
	for _, name := range []string{"", "{a}", "a}{b", "\x00", "ü\xff", "*:", strings.Repeat("\xff", 1024)} {
		l := newLatch(t, h)
		l.name += name
		participants := []string{
			"a", "A", "a ", "\x00", "\x00\x00", "ü\xff", "{}", "1", "01", strings.Repeat("x", 1024), strings.Repeat("x", 1023),
		}
		w := l.await(len(participants))
		for i, participant := range participants {
			l.countDown(participant, i+1)
			l.countDown(participant, i+1)
		}
		w.fails(nil)
	}
}

func concurrentParticipants(t *testing.T, h Harness[store.Latches]) {
	const participants = 50
	l := newLatch(t, h)
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		seen = map[int]int{}
	)
	w := l.await(participants)
	for i := range 3 * participants {
		wg.Go(func() {
			participant := fmt.Sprint("p", i%participants)
			arrived, err := l.store.CountDownLatch(background(), l.request(participants), participant)
			if err != nil || arrived < 1 || arrived > participants {
				t.Errorf("CountDownLatch: %d, %v", arrived, err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen[arrived]++
		})
	}
	wg.Wait()
	for n := range participants {
		if seen[n+1] == 0 {
			t.Errorf("number %d was not returned", n+1)
		}
	}
	w.fails(nil)
	l.arrived(participants)
}

func latchLives(t *testing.T, h Harness[store.Latches]) {
	inTime(t, 400*time.Millisecond, func(ttl time.Duration) (late bool) {
		l := newLatch(t, h)
		l.ttl = ttl
		first := time.Now()
		l.countDown("a", 1)
		h.Advance(ttl * 5 / 8)
		second := time.Now()
		if expect(t, "CountDownLatch", l.arrives("b"), 2, first, ttl) {
			return true
		}
		h.Advance(ttl * 5 / 8)
		if expect(t, "InspectLatch", l.inspect(), 2, second, ttl) || l.await(2).opens(second) {
			return true
		}
		h.Advance(ttl / 2)
		l.arrived(0)
		return false
	})
}

func repeatProlongsNothing(t *testing.T, h Harness[store.Latches]) {
	inTime(t, 400*time.Millisecond, func(ttl time.Duration) (late bool) {
		l := newLatch(t, h)
		l.ttl = ttl
		began := time.Now()
		l.countDown("a", 1)
		if expect(t, "CountDownLatch", l.arrives("b"), 2, began, ttl) {
			return true
		}
		h.Advance(ttl / 2)
		for _, participant := range []string{"a", "b"} {
			if expect(t, "CountDownLatch again", l.arrives(participant), 2, began, ttl) {
				return true
			}
		}
		if l.await(2).opens(began) || expect(t, "InspectLatch", l.inspect(), 2, began, ttl) {
			return true
		}
		h.Advance(ttl * 5 / 8)
		l.arrived(0)
		l.countDown("a", 1)
		return false
	})
}

func latchExpires(t *testing.T, h Harness[store.Latches]) {
	inTime(t, shortLease, func(ttl time.Duration) (late bool) {
		l := newLatch(t, h)
		l.ttl = ttl
		for range 2 {
			w := l.await(3)
			began := time.Now()
			for i, participant := range []string{"a", "b", "c"} {
				if expect(t, "CountDownLatch", l.arrives(participant), i+1, began, ttl) {
					return true
				}
			}
			if w.opens(began) {
				return true
			}
			h.Advance(ttl * 3 / 2)
			l.arrived(0)
		}
		l.ttl = longLease
		w := l.await(3)
		l.countDown("d", 1)
		l.countDown("a", 2)
		l.waiting(w)
		l.countDown("b", 3)
		w.fails(nil)
		return false
	})
}

func waitOutlivesLatch(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	w := l.await(2)
	l.ttl = shortLease
	l.countDown("a", 1)
	h.Advance(pastLease)
	l.waiting(w)
	l.ttl = longLease
	l.countDown("b", 1)
	l.waiting(w)
	l.countDown("b", 1)
	l.countDown("a", 2)
	w.fails(nil)
}

func endedLatchWait(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	l.countDown("a", 1)
	first, second, third := l.await(2), l.await(2), l.await(2)
	first.cancel()
	first.fails(context.Canceled)
	third.cancel()
	third.fails(context.Canceled)
	l.waiting(second)
	l.arrived(1)
	l.countDown("b", 2)
	second.fails(nil)

	l = newLatch(t, h)
	ctx, cancel := context.WithTimeout(background(), 20*time.Millisecond)
	defer cancel()
	if err := l.store.AwaitLatch(ctx, l.request(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("AwaitLatch beyond its deadline: %v", err)
	}
}

// latchCalls calls every method, and passes its error.
func (l latchCase) latchCalls(ctx context.Context, want func(method string, err error)) {
	_, err := l.store.CountDownLatch(ctx, l.request(1), "a")
	want("CountDownLatch", err)
	_, err = l.store.InspectLatch(ctx, l.request(1))
	want("InspectLatch", err)
	want("AwaitLatch", l.store.AwaitLatch(ctx, l.request(1)))
}

func cancelledLatch(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	ctx, cancel := context.WithCancel(background())
	cancel()
	l.latchCalls(ctx, func(method string, err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", method, err)
		}
	})
	l.arrived(0)
	l.countDown("a", 1)
}

func closedLatch(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	l.countDown("a", 1)
	waiters := []*latchWaiter{l.await(2), l.await(3)}
	closes(t, h.Store)
	for _, w := range waiters {
		select {
		case <-w.done:
			wantErrClosed(t, w.err)
		case <-time.After(eventually):
			t.Fatal("AwaitLatch does not end in a closed store")
		}
	}
	l.latchCalls(background(), func(_ string, err error) { wantErrClosed(t, err) })
}

func shutDownLatch(t *testing.T, h Harness[store.Latches]) {
	l := newLatch(t, h)
	w := l.await(2)
	shutsDown(t, h.Store)
	<-w.done
	wantErrClosed(t, w.err)
	_, err := h.Store.CountDownLatch(background(), l.request(2), "a")
	wantErrClosed(t, err)
}
