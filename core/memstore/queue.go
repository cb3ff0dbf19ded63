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
	// placeKept is for how long a place in the queue is kept while nobody awaits it.
	placeKept = int64(3 * time.Second / time.Microsecond)
	// turnKept is for how long a request whose turn came while nobody awaited it has what it asked
	// for kept.
	turnKept = int64(2 * time.Second / time.Microsecond)
	// never is later than every time of the store's clock.
	never = int64(math.MaxInt64)
)

// stage is how far a request has come.
type stage int

const (
	queued   stage = iota
	reserved       // it is its turn, but nobody awaits it: it is granted when somebody asks
	holding        // until it ends, and then in the way of others for its delay
	gone
)

// waiter is what requests for locks and for permits have in common: their part in a queue.
type waiter struct {
	id        requestID
	stage     stage
	withdrawn bool
	until     int64 // when the request leaves by itself, whatever its stage

	place    *list.Element // in queue.places
	care     *list.Element // in queue.awaited or queue.unawaited
	awaiting int           // calls that await it
	wake     chan struct{} // has room for one
	sleeps   int64         // until when they sleep
}

// asker is a request, which embeds a waiter.
type asker interface{ waits() *waiter }

func (w *waiter) waits() *waiter { return w }

func (w *waiter) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// queue is who waits for a lock or a semaphore.
type queue[R asker] struct {
	places    list.List // all of them, in order of arrival
	awaited   list.List
	unawaited list.List // in the order in which they will lose their places
}

// push puts a new request at the end.
func (q *queue[R]) push(r R, now int64) {
	w := r.waits()
	w.stage, w.wake, w.sleeps = queued, make(chan struct{}, 1), never
	w.place = q.places.PushBack(r)
	q.keep(r, now)
}

// keep keeps the place of a request for a while if nobody awaits it, and for good otherwise.
func (q *queue[R]) keep(r R, now int64) {
	w := r.waits()
	if w.awaiting > 0 && w.until == never {
		return // others await it already
	}
	q.ignore(w)
	if w.awaiting > 0 {
		w.until, w.care = never, q.awaited.PushBack(r)
	} else {
		w.until, w.care = now+placeKept, q.unawaited.PushBack(r)
	}
}

func (q *queue[R]) ignore(w *waiter) {
	if w.care != nil {
		q.awaited.Remove(w.care) // does nothing if it is in the other list
		q.unawaited.Remove(w.care)
		w.care = nil
	}
}

func (q *queue[R]) remove(r R) {
	w := r.waits()
	q.ignore(w)
	q.places.Remove(w.place)
	w.place = nil
}

func (q *queue[R]) len() int { return q.places.Len() }

// head is the request that came first.
func (q *queue[R]) head() (r R, ok bool) { return front[R](&q.places) }

// lost is a request whose place nobody has cared for in time.
func (q *queue[R]) lost(now int64) (r R, ok bool) {
	r, ok = front[R](&q.unawaited)
	return r, ok && r.waits().until <= now
}

func front[R any](l *list.List) (r R, ok bool) {
	if e := l.Front(); e != nil {
		return e.Value.(R), true
	}
	return r, false
}

// loses is when the next place is lost.
func (q *queue[R]) loses() int64 {
	if r, ok := front[R](&q.unawaited); ok {
		return r.waits().until
	}
	return never
}

// watcher is the one of those who wait that watches the clock for all of them, or nil.
func (q *queue[R]) watcher() *waiter {
	if r, ok := front[R](&q.awaited); ok {
		return r.waits()
	}
	return nil
}

// watch sees to it that the watcher sleeps no longer than until soonest.
func (q *queue[R]) watch(soonest int64) {
	if w := q.watcher(); w != nil && soonest < w.sleeps {
		w.sleeps = soonest
		w.poke()
	}
}

// contested is a lock or a semaphore that somebody waits for.
type contested[R asker] interface {
	line() *queue[R]
	soonest() int64 // no request leaves by itself before
	advance(now int64)
	settle()
}

// await returns when the request is no longer in the queue. Its shard, whose mutex mu is, is locked
// when await is called and when it returns, but not meanwhile.
func await[R asker](ctx context.Context, s *Store, mu *sync.Mutex, of contested[R], r R) error {
	q, w := of.line(), r.waits()
	over := s.hooks.Over()
	w.awaiting++
	q.keep(r, s.now())
	defer func() {
		w.awaiting--
		if w.awaiting > 0 {
			w.poke() // a wake-up is for one of them, and what ends this call may end the others
		}
		if w.stage == queued {
			q.keep(r, s.now())
			of.settle()
		}
	}()
	var timer *time.Timer
	for {
		now := s.now()
		of.advance(now)
		w.sleeps = never
		if q.watcher() == w {
			w.sleeps = of.soonest()
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
		if w.sleeps != never {
			d := time.Duration(w.sleeps-now) * time.Microsecond
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

// micros is a duration in µs, rounded up: a hold is not to end before its holder thinks so.
func micros(d time.Duration) int64 {
	m := d.Microseconds()
	if time.Duration(m)*time.Microsecond < d {
		m++
	}
	return m
}
