package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// permitQueueCases are about those who wait for permits.
var permitQueueCases = []testCase{
	{"a release grants to who waits", permitGrantedOnRelease},
	{"an expiry grants to who waits", permitGrantedOnExpiry},
	{"in the order of arrival", permitsInOrder},
	{"a heavy request is not starved", heavyNotStarved},
	{"one release serves several", releaseServesSeveral},
	{"who tries does not overtake", tryDoesNotOvertake},
	{"barging overtakes who does not fit", bargingOvertakes},
	{"barging in the queue", bargingInQueue},
	{"the queue is bounded", boundedQueue},
	{"who leaves makes room in the queue", leavingMakesRoom},
	{"a wait that ends keeps its place for a while", endedPermitWaitKeepsPlace},
	{"withdrawing the head lets those behind move up", headWithdraws},
	{"release ends a wait", releaseEndsWait},
	{"a place that nobody awaits is lost", unawaitedPlaceIsLost},
	{"a turn that nobody awaits is reserved", reservedTurn},
	{"a larger capacity lets who waits in", capacityGrows},
	{"a smaller capacity makes who waits wait longer", capacityShrinks},
	{"await without acquire queues", awaitQueues},
}

func permitGrantedOnRelease(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder := s.asks(2, 2)
	first := s.granted(holder)
	w := s.waits(s.asks(1, 2))
	s.still(w)
	s.release(true, holder)
	if second := w.granted(); second.Fence == first.Fence {
		t.Errorf("two permits have the fence %d", second.Fence)
	}
	s.stands(1, 0)
	s.renew(true, w.req)
}

func permitGrantedOnExpiry(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	short, long := s.asks(1, 2), s.asks(1, 2)
	short.TTL = 3 * shortLease
	s.granted(short)
	s.granted(long)
	w := s.waits(s.asks(1, 2))
	h.Advance(3*shortLease + 2*pastLease)
	w.granted()
	s.stands(2, 0)
}

func permitsInOrder(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder := s.asks(1, 1)
	s.granted(holder)
	var ws []*permitWaiter
	for i := range 5 {
		req := s.asks(1, 1)
		if reply := s.queued(req); reply.Waiting != i {
			t.Errorf("%d wait before the one at %d", reply.Waiting, i)
		}
		ws = append(ws, s.await(req))
	}
	for i, w := range ws {
		s.still(ws[i:]...)
		s.release(true, holder)
		w.granted()
		holder = w.req
	}
	s.stands(1, 0)
}

func heavyNotStarved(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	a, b := s.asks(1, 3), s.asks(2, 3)
	s.granted(a)
	s.granted(b)
	heavy := s.waits(s.asks(3, 3))
	light := s.waits(s.asks(1, 3))
	s.release(true, a)
	s.taken(s.asks(1, 3)) // there is room for it, and it is not its turn
	s.still(heavy, light)
	s.release(true, b)
	heavy.granted()
	s.still(light)
	s.release(true, heavy.req)
	light.granted()
	s.stands(1, 0)
}

func releaseServesSeveral(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder := s.asks(5, 5)
	s.granted(holder)
	ws := []*permitWaiter{s.waits(s.asks(2, 5)), s.waits(s.asks(1, 5)), s.waits(s.asks(2, 5)), s.waits(s.asks(1, 5))}
	s.release(true, holder)
	for _, w := range ws[:3] {
		w.granted()
	}
	s.still(ws[3])
	s.stands(5, 1)
}

func tryDoesNotOvertake(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	s.granted(s.asks(1, 2))
	w := s.waits(s.asks(2, 2))
	if reply := s.taken(s.asks(1, 2)); reply.InUse != 1 || reply.Waiting != 1 || reply.QueueFull {
		t.Errorf("taken: %+v", reply)
	}
	s.queued(s.asks(1, 2))
	s.release(false, w.req)
	w.fails(semaphore.ErrWithdrawn)
}

func barging(req semaphore.AcquireRequest) semaphore.AcquireRequest {
	req.Barging = true
	return req
}

func bargingOvertakes(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder := s.asks(2, 3)
	s.granted(holder)
	w := s.waits(s.asks(2, 3))
	s.taken(s.asks(1, 3))
	quick := barging(s.asks(1, 3))
	s.granted(quick)
	s.taken(barging(s.asks(1, 3)))
	s.still(w)
	s.release(true, quick)
	s.still(w)
	s.release(true, holder)
	w.granted()
}

func bargingInQueue(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	a, b := s.asks(2, 4), s.asks(2, 4)
	s.granted(a)
	s.granted(b)
	heavy := s.waits(s.asks(3, 4))
	orderly := s.waits(s.asks(1, 4))
	bold := s.waits(barging(s.asks(1, 4)))
	s.release(true, a)
	bold.granted()
	s.still(heavy, orderly)
	s.release(true, b)
	heavy.granted()
	s.still(orderly)
}

func boundedQueue(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	bounded := func() semaphore.AcquireRequest {
		req := s.asks(1, 1)
		req.MaxWaiting = 2
		return req
	}
	holder := bounded()
	s.granted(holder)
	first, second := bounded(), bounded()
	w := s.waits(first)
	s.queued(second)
	for range 2 {
		if reply := s.acquire(bounded(), semaphore.Taken); !reply.QueueFull || reply.Waiting != 2 || reply.InUse != 1 {
			t.Errorf("refused with %+v", reply)
		}
	}
	s.queued(second) // it is in the queue
	if reply := s.taken(bounded()); reply.QueueFull {
		t.Errorf("%+v, but it would not have been queued anyway", reply)
	}
	s.release(true, holder)
	w.granted()
	s.queued(bounded())
}

func leavingMakesRoom(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	s.granted(s.asks(1, 1))
	first := s.asks(1, 1)
	s.queued(first)
	second := s.asks(1, 1)
	second.MaxWaiting = 1
	s.acquire(second, semaphore.Taken)
	s.release(false, first)
	s.queued(second)
	s.stands(1, 1)
}

func endedPermitWaitKeepsPlace(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder := s.asks(1, 1)
	s.granted(holder)
	first, second := s.waits(s.asks(1, 1)), s.waits(s.asks(1, 1))
	first.cancel()
	first.fails(context.Canceled)
	again := s.await(first.req)
	s.still(again, second)
	s.release(true, holder)
	again.granted()
	s.still(second)
}

func headWithdraws(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	s.granted(s.asks(1, 3))
	heavy := s.waits(s.asks(3, 3))
	light := s.waits(s.asks(2, 3))
	s.still(heavy, light)
	began := time.Now()
	heavy.cancel()
	heavy.fails(context.Canceled)
	s.release(false, heavy.req)
	light.granted()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("the next was delayed by %v", took)
	}
	s.stands(3, 0)
}

func releaseEndsWait(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	s.granted(s.asks(1, 1))
	w := s.waits(s.asks(1, 1))
	s.release(false, w.req)
	w.fails(semaphore.ErrWithdrawn)
	s.stands(1, 0)
}

func unawaitedPlaceIsLost(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder := s.asks(1, 2)
	s.granted(holder)
	s.queued(s.asks(2, 2))
	h.Advance(4 * time.Second)
	s.granted(s.asks(1, 2))
}

func reservedTurn(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder, next := s.asks(2, 2), s.asks(2, 2)
	s.granted(holder)
	s.queued(next)
	s.release(true, holder)
	s.taken(s.asks(1, 2)) // it is the other's turn
	s.stands(2, 0)
	s.granted(next)
	s.stands(2, 0)
}

func capacityGrows(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	s.granted(s.asks(2, 2))
	first, second := s.asks(2, 2), s.asks(1, 5)
	s.queued(first)
	w := s.waits(second)
	s.stands(2, 2) // there is room for the second, but not for the one before it
	first.Capacity = 4
	reply, err := s.store.AcquirePermits(background(), first)
	if err != nil || reply.Outcome != semaphore.Granted {
		w := s.await(first)
		w.granted()
	}
	w.granted()
	s.stands(5, 0)
}

func capacityShrinks(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	a, b := s.asks(2, 4), s.asks(2, 4)
	s.granted(a)
	s.granted(b)
	req := s.asks(2, 4)
	s.queued(req)
	req.Capacity = 2
	s.queued(req)
	w := s.await(req)
	s.release(true, a)
	s.still(w)
	s.release(true, b)
	w.granted()
	s.stands(2, 0)
}

func awaitQueues(t *testing.T, h Harness) {
	s := newSemaphore(t, h)
	holder := s.asks(1, 1)
	s.granted(holder)
	w := s.await(s.asks(1, 1))
	for deadline := time.Now().Add(eventually); s.inspect().Waiting != 1; {
		if time.Now().After(deadline) {
			t.Fatalf("not in the queue: %+v", s.inspect())
		}
		h.Advance(10 * time.Millisecond)
	}
	s.release(true, holder)
	w.granted()
}
