package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Requests to one server are batched while other calls to it are in flight: a batch costs the
// server, and the client, a fraction of single calls. A request without concurrent ones is sent at
// once.

const (
	// minTakers is the number of calls in flight from which on requests are batched: at least one
	// that the server is working on, and one on its way.
	minTakers = 2
	// patience is how long a request waits for an in-flight call before another call is started;
	// the estimated server time of the work in flight, at most slowWork per unit, is added. To a
	// distant server another call saves a round trip; to a busy one it would not be faster.
	patience = time.Millisecond
	slowWork = 10 * time.Microsecond
	// maxWaiting bounds the number of queued requests.
	maxWaiting = 1 << 16
)

// request is a request that may be batched.
type request interface {
	inLane() *turn
	// work returns its share of the maximum work of a batch.
	work() int
}

// turn is the state of a request in a lane.
type turn struct {
	since time.Time     // of the wait
	sent  time.Time     // or about to be sent; zero if neither
	state turnState     // guarded by the lane's mu, as is err until it has ended
	ended chan struct{} // has room for one
	err   error
}

func (t *turn) inLane() *turn { return t }

type turnState int

const (
	turnWaits turnState = iota
	turnSent            // or about to be sent
	turnEnded           // with a reply, or at its deadline
	turnLeft            // canceled by its caller
)

// lane batches requests to one server, and limits the calls in flight.
type lane[R request] struct {
	start   func(func()) bool   // starts a background call that Close waits for
	take    func(*lane[R], []R) // sends a batch
	few     int                 // calls in flight from which on requests are batched
	most    int                 // calls under way
	maxWork int                 // maximum of a batch, since others wait for it
	// A request waits at most for limit, and at most for half of silence while the server has not
	// replied for silence. If they are zero, the caller sets its deadline.
	silence, limit time.Duration

	mu      sync.Mutex
	takers  int // calls under way
	working int // their work
	waiting []R
	heard   time.Time   // last reply of the server, or the first call without one
	timer   *time.Timer // for the first queued request
	timed   bool        // it runs
}

// begin reports whether a caller may make a call of its own, which it then ends with end.
func (l *lane[R]) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.takers >= l.few {
		return false
	}
	l.taking()
	return true
}

// taking counts one more call in flight. Without calls in flight, the server is not silent. The
// caller holds mu.
func (l *lane[R]) taking() {
	if l.takers == 0 && l.silence > 0 {
		l.heard = time.Now()
	}
	l.takers++
}

// end ends a call. If requests are queued, the call continues with a batch of them in the
// background.
func (l *lane[R]) end() {
	if batch, work := l.next(0); batch != nil {
		l.goOn(batch, work)
	}
}

// hear records a reply of the server.
func (l *lane[R]) hear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = time.Now()
}

func (l *lane[R]) goOn(batch []R, work int) {
	takeAll := func() {
		for ; batch != nil; batch, work = l.next(work) {
			l.take(l, batch)
			runtime.Gosched() // callers with a reply may be about to send again
		}
	}
	if !l.start(takeAll) { // the store is closed: the calls return ErrClosed
		takeAll()
	}
}

// next returns the next batch and its work, after a call with this much work is done. Without
// queued requests it returns nil, and the call has ended.
func (l *lane[R]) next(done int) (batch []R, work int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, now := 0, time.Now()
	for ; n < len(l.waiting); n++ {
		r := l.waiting[n]
		if r.inLane().state != turnWaits {
			continue
		}
		if l.silent(now) && now.Sub(r.inLane().since) >= l.silence/2 { // a reply would be too late
			r.inLane().end(late(context.DeadlineExceeded, false))
			continue
		}
		if work+r.work() > l.maxWork && len(batch) > 0 {
			break
		}
		work += r.work()
		r.inLane().state, r.inLane().sent = turnSent, now
		batch = append(batch, r)
	}
	clear(l.waiting[:n])
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	if batch == nil {
		l.takers--
	}
	l.working += work - done
	return batch, work
}

// patience returns how long a request waits for a call to end: at most a part of its limit, which
// is then checked too. The caller holds mu.
func (l *lane[R]) patience() time.Duration {
	busy := patience + time.Duration(l.working)*slowWork
	if l.limit > 0 {
		return min(busy, max(patience, l.limit/4))
	}
	return busy
}

// add queues a request for the next batch. It returns false if too many are queued. If fewer calls
// than few are in flight, it starts one.
func (l *lane[R]) add(r R) bool {
	l.mu.Lock()
	if len(l.waiting) >= maxWaiting {
		l.mu.Unlock()
		return false
	}
	l.waiting = append(l.waiting, r)
	idle := l.takers < l.few
	if idle {
		l.taking()
	} else {
		l.watch(l.patience())
	}
	l.mu.Unlock()
	if idle {
		l.end()
	}
	return true
}

// watch starts the timer that checks queued requests. The caller holds mu.
func (l *lane[R]) watch(in time.Duration) {
	switch {
	case l.timed:
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(in, l.overdue)
	default:
		l.timer.Reset(in)
	}
	l.timed = true
}

// overdue starts another call if a request has waited for too long, and ends requests that have
// reached their limit.
func (l *lane[R]) overdue() {
	l.mu.Lock()
	l.timed = false
	now, begin := time.Now(), false
	for len(l.waiting) > 0 {
		t := l.waiting[0].inLane()
		waited := now.Sub(t.since)
		if t.state == turnWaits && (l.limit == 0 || waited < l.limit) {
			enough := l.patience()
			if waited >= enough {
				if begin = l.takers < l.most; begin {
					l.taking()
				}
				waited = 0 // for the next check
			}
			l.watch(enough - waited)
			break
		}
		if t.state == turnWaits {
			t.end(late(context.DeadlineExceeded, false))
		}
		clear(l.waiting[:1])
		l.waiting = l.waiting[1:]
	}
	l.mu.Unlock()
	if begin {
		l.end()
	}
}

// silent reports whether calls have been in flight without any reply for too long.
func (l *lane[R]) silent(now time.Time) bool { return l.silence > 0 && now.Sub(l.heard) >= l.silence }

// end ends a request. The caller holds the lane's mu.
func (t *turn) end(err error) {
	t.state, t.err = turnEnded, err
	t.ended <- struct{}{} // the receiver may reuse the request
}

// answer ends the requests of a batch that were not canceled. heard reports whether the server has
// replied.
func (l *lane[R]) answer(batch []R, heard bool, of func(i int, r R) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if heard {
		l.heard = time.Now()
	}
	for i, r := range batch {
		if t := r.inLane(); t.state == turnSent {
			t.end(of(i, r))
		}
	}
}

// expire ends a request that was not sent in time. One that was sent ends with its call.
func (l *lane[R]) expire(r R) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := r.inLane(); t.state == turnWaits {
		t.end(late(context.DeadlineExceeded, false))
	}
}

// leave cancels a request for its caller. It returns false if the request has ended.
func (l *lane[R]) leave(r R, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := r.inLane()
	if t.state == turnEnded {
		return false
	}
	t.err = late(why, t.state == turnSent)
	t.state = turnLeft
	return true
}

func late(why error, sent bool) error { return explain(fmt.Errorf("no reply in time: %w", why), sent) }

// newLane returns a lane whose batches are sent by take.
func newLane[R request](s *Store, take func(*lane[R], []R)) *lane[R] {
	return &lane[R]{start: s.start, take: take, few: minTakers, most: s.mostTakers()}
}

// mostTakers returns the maximum of calls in flight of a lane: half of the connections.
func (s *Store) mostTakers() int { return max(minTakers, s.poolSize/2) }
