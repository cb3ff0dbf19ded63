package memstore

import (
	"container/list"
	"context"
	"math"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// placeFor is how long a place in the queue is kept while no call awaits it.
	placeFor = int64(3 * time.Second / time.Microsecond)
	// reservedFor is how long a grant is reserved for a request that no call awaited when its turn
	// came.
	reservedFor = int64(2 * time.Second / time.Microsecond)
	// never is later than every time of the store's clock.
	never = int64(math.MaxInt64)
)

// stage is how far a request has come.
type stage int

const (
	queued   stage = iota
	reserved       // its turn came while no call awaited it: granted at the next request
	holding        // until it ends, including its lock-delay
	gone
)

// waiter is the part of a request in a queue, for locks and for permits.
type waiter struct {
	id        requestID
	stage     stage
	withdrawn bool
	until     int64 // when the request expires, at any stage

	place       *list.Element // in queue.places
	liveness    *list.Element // in queue.awaited or queue.unawaited
	awaiting    int           // number of calls that await it
	wake        chan struct{} // has room for one
	sleepsUntil int64         // when the calls that await it wake up by themselves
}

// waiting is a request, which embeds a waiter.
type waiting interface{ asWaiter() *waiter }

func (w *waiter) asWaiter() *waiter { return w }

func (w *waiter) notify() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// queue holds the waiters of a lock or a semaphore.
type queue[R waiting] struct {
	places    list.List // all, in order of arrival
	awaited   list.List
	unawaited list.List // in the order of their expiry
}

// push appends a new request.
func (q *queue[R]) push(r R, now int64) {
	w := r.asWaiter()
	w.stage, w.wake, w.sleepsUntil = queued, make(chan struct{}, 1), never
	w.place = q.places.PushBack(r)
	q.refresh(r, now)
}

// refresh extends the place of a request for placeFor, or without limit while a call awaits it.
func (q *queue[R]) refresh(r R, now int64) {
	w := r.asWaiter()
	if w.awaiting > 0 && w.until == never {
		return // another call awaits it already
	}
	q.unlist(w)
	if w.awaiting > 0 {
		w.until, w.liveness = never, q.awaited.PushBack(r)
	} else {
		w.until, w.liveness = now+placeFor, q.unawaited.PushBack(r)
	}
}

func (q *queue[R]) unlist(w *waiter) {
	if w.liveness != nil {
		q.awaited.Remove(w.liveness) // no effect if it is in the other list
		q.unawaited.Remove(w.liveness)
		w.liveness = nil
	}
}

func (q *queue[R]) remove(r R) {
	w := r.asWaiter()
	q.unlist(w)
	q.places.Remove(w.place)
	w.place = nil
}

func (q *queue[R]) len() int { return q.places.Len() }

// head returns the first request.
func (q *queue[R]) head() (r R, ok bool) { return front[R](&q.places) }

// expired returns a request whose place has expired.
func (q *queue[R]) expired(now int64) (r R, ok bool) {
	r, ok = front[R](&q.unawaited)
	return r, ok && r.asWaiter().until <= now
}

func front[R any](l *list.List) (r R, ok bool) {
	if e := l.Front(); e != nil {
		return e.Value.(R), true
	}
	return r, false
}

// nextExpiry returns when the next place expires.
func (q *queue[R]) nextExpiry() int64 {
	if r, ok := front[R](&q.unawaited); ok {
		return r.asWaiter().until
	}
	return never
}

// timekeeper returns the waiter that sleeps until the next deadline, for all waiters; nil if no
// waiter is awaited.
func (q *queue[R]) timekeeper() *waiter {
	if r, ok := front[R](&q.awaited); ok {
		return r.asWaiter()
	}
	return nil
}

// wakeBefore wakes the timekeeper if it sleeps longer than until soonest.
func (q *queue[R]) wakeBefore(soonest int64) {
	if w := q.timekeeper(); w != nil && soonest < w.sleepsUntil {
		w.sleepsUntil = soonest
		w.notify()
	}
}

// awaitable is a lock or a semaphore with waiters.
type awaitable[R waiting] interface {
	waiters() *queue[R]
	nextDeadline() int64 // no request expires before
	advance(now int64)
	settle()
}

// await blocks until the request is no longer in the queue. mu is the mutex of its shard; the
// caller holds it, and await releases it while it sleeps.
func await[R waiting](ctx context.Context, s *Store, mu *sync.Mutex, of awaitable[R], r R) error {
	q, w := of.waiters(), r.asWaiter()
	over := s.hooks.Over()
	w.awaiting++
	q.refresh(r, s.now())
	defer func() {
		w.awaiting--
		if w.awaiting > 0 {
			w.notify() // one wake-up reaches one call, and its cause may end the others
		}
		if w.stage == queued {
			q.refresh(r, s.now())
			of.settle()
		}
	}()
	var timer *time.Timer
	for {
		now := s.now()
		of.advance(now)
		w.sleepsUntil = never
		if q.timekeeper() == w {
			w.sleepsUntil = of.nextDeadline()
		}
		switch {
		case s.hooks.Begun():
			return store.ErrClosed
		case w.stage != queued:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		var event <-chan time.Time
		if w.sleepsUntil != never {
			d := time.Duration(w.sleepsUntil-now) * time.Microsecond
			if timer == nil {
				timer = time.NewTimer(d)
				defer timer.Stop()
			} else {
				timer.Reset(d)
			}
			event = timer.C
		}
		mu.Unlock()
		select {
		case <-w.wake:
		case <-event:
		case <-ctx.Done():
		case <-over:
		}
		mu.Lock()
	}
}

// micros returns a duration in µs, rounded up, so that a hold does not end before its holder's
// deadline.
func micros(d time.Duration) int64 {
	m := d.Microseconds()
	if time.Duration(m)*time.Microsecond < d {
		m++
	}
	return m
}
