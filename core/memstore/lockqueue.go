package memstore

import (
	"container/list"
	"math"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
)

const (
	// placeKept is for how long a place in the queue is kept while nobody awaits it.
	placeKept = int64(3 * time.Second / time.Microsecond)
	// turnKept is for how long a request whose turn came while nobody awaited it has the lock kept.
	turnKept = int64(2 * time.Second / time.Microsecond)
	// never is later than every time of the store's clock.
	never = int64(math.MaxInt64)
)

// stage is how far a request has come.
type stage int

const (
	queued   stage = iota
	reserved       // it is its turn, but nobody awaits it: it becomes a hold when somebody asks
	holding        // until it ends, and then in the way of others for its delay
	gone
)

// request is a request for a hold, and then the hold.
type request struct {
	id        requestID
	ask       lock.AcquireRequest
	of        *lockState
	stage     stage
	shared    bool // as asked for, or downgraded
	withdrawn bool
	grant     lock.Grant
	ends      int64 // when the hold expires
	until     int64 // when the request leaves by itself, whatever its stage
	index     int   // in of.holds
	place     *list.Element

	awaiting int           // calls of AwaitLock
	wake     chan struct{} // has room for one
	sleeps   int64         // until when they sleep
}

func (r *request) held(now int64) bool { return r.stage == holding && now < r.ends }

// extend starts the hold's TTL anew.
func (r *request) extend(now int64, ttl, delay time.Duration) {
	r.ends = now + micros(ttl)
	r.until = r.ends + micros(delay)
	r.of.soonest = min(r.of.soonest, r.until)
}

func (r *request) poke() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// lockState is one lock: who has it, and who waits. Its shard's mutex guards it.
//
// Nothing happens in the background. Whoever uses a lock first makes what time has done to it
// happen, and the first of those who wait sleeps no longer than until the next thing that time does.
type lockState struct {
	shard    *lockShard
	key      lockKey
	holds    []*request // one exclusive or any number of shared ones; reserved, holding, or in their delay
	queue    list.List
	reserved int   // of the holds
	soonest  int64 // no request leaves by itself before
	index    int   // in shard.order
}

// advance makes happen what time has done. It may drop the lock.
func (l *lockState) advance(now int64) {
	if now < l.soonest {
		return
	}
	l.soonest = never
	for i := len(l.holds) - 1; i >= 0; i-- { // backwards, since a removal moves the last one
		l.removeIfLeft(l.holds[i], now)
	}
	for e := l.queue.Front(); e != nil; {
		next := e.Next()
		l.removeIfLeft(e.Value.(*request), now)
		e = next
	}
	l.admit(now)
	l.settle()
}

func (l *lockState) removeIfLeft(r *request, now int64) {
	if r.until <= now {
		l.remove(r)
	} else {
		l.soonest = min(l.soonest, r.until)
	}
}

// admits reports whether a request may have the lock beside those who have it.
func (l *lockState) admits(shared bool) bool {
	return len(l.holds) == 0 || shared && l.holds[0].shared
}

// admit gives the lock to those at the head of the queue who may have it: one exclusive request,
// or all shared ones before the next exclusive one.
func (l *lockState) admit(now int64) {
	for e := l.queue.Front(); e != nil; e = l.queue.Front() {
		r := e.Value.(*request)
		if !l.admits(r.shared) {
			return
		}
		l.queue.Remove(e)
		r.place = nil
		if r.awaiting > 0 {
			l.hold(r, now)
			r.poke()
			continue
		}
		l.join(r)
		r.stage, r.until = reserved, now+turnKept
		l.reserved++
		l.soonest = min(l.soonest, r.until)
	}
}

func (l *lockState) join(r *request) {
	r.index = len(l.holds)
	l.holds = append(l.holds, r)
}

// hold makes a request that is new, from the queue, or reserved a hold.
func (l *lockState) hold(r *request, now int64) {
	if r.stage == reserved {
		l.reserved--
	} else {
		l.join(r)
	}
	n := 1
	if !r.shared {
		n = min(max(r.ask.Fences, 1), lock.MaxFences)
	}
	s := l.shard.store
	r.stage = holding
	r.grant.Sent = s.start.Add(time.Duration(now) * time.Microsecond)
	r.grant.Fence, r.grant.LastFence = s.fences.mint(n, now)
	r.extend(now, r.ask.TTL, r.ask.Delay)
}

// enqueue puts a new request at the end of the queue.
func (l *lockState) enqueue(r *request, now int64) {
	r.stage, r.wake = queued, make(chan struct{}, 1)
	r.place = l.queue.PushBack(r)
	l.keepPlace(r, now)
}

// keepPlace keeps the place of a queued request for a while if nobody awaits it, and for good
// otherwise.
func (l *lockState) keepPlace(r *request, now int64) {
	r.until = never
	if r.awaiting == 0 {
		r.until = now + placeKept
		l.soonest = min(l.soonest, r.until)
	}
}

// remove ends a request at any stage. Others may be admitted then.
func (l *lockState) remove(r *request) {
	if r.place != nil {
		l.queue.Remove(r.place)
		r.place = nil
	} else {
		if r.stage == reserved {
			l.reserved--
		}
		last := len(l.holds) - 1
		l.holds[r.index] = l.holds[last]
		l.holds[r.index].index = r.index
		l.holds[last] = nil
		l.holds = l.holds[:last]
	}
	r.stage = gone
	l.shard.forget(r)
}

// end removes a request that was released, and has others admitted.
func (l *lockState) end(r *request, now int64) {
	r.withdrawn = true
	l.remove(r)
	l.admit(now)
	l.settle()
	r.poke() // whoever awaits it
}

// watcher is the first in the queue whom somebody awaits, or nil. It alone watches the clock for
// all of them.
func (l *lockState) watcher() *request {
	for e := l.queue.Front(); e != nil; e = e.Next() {
		if r := e.Value.(*request); r.awaiting > 0 {
			return r
		}
	}
	return nil
}

// settle ends every change: it sees to it that somebody watches the clock, and drops a lock that
// nobody has or wants.
func (l *lockState) settle() {
	if len(l.holds) == 0 && l.queue.Len() == 0 {
		l.shard.drop(l)
		return
	}
	if w := l.watcher(); w != nil && l.soonest < w.sleeps {
		w.sleeps = l.soonest
		w.poke()
	}
}

// refusal is the reply to a request that does not have the lock.
func (l *lockState) refusal(outcome lock.AcquireOutcome, now int64) lock.AcquireReply {
	reply := lock.AcquireReply{Outcome: outcome, Waiting: l.waiting()}
	if outcome == lock.Queued {
		reply.Waiting--
	}
	left := int64(0)
	for _, r := range l.holds {
		if r.held(now) {
			reply.Holder = r.ask.Holder
			left = max(left, r.ends-now)
		} else {
			left = max(left, r.until-now)
		}
	}
	reply.Remaining = time.Duration(left) * time.Microsecond
	return reply
}

func (l *lockState) waiting() int { return l.queue.Len() + l.reserved }

// state is what the store says of the lock.
func (l *lockState) state(now int64) lock.State {
	state := lock.State{Key: l.key.key, Waiting: l.waiting()}
	for _, r := range l.holds {
		if r.held(now) {
			state.Holders = append(state.Holders, lock.Holder{
				Fence: r.grant.Fence, LastFence: r.grant.LastFence, Shared: r.shared, Meta: r.ask.Holder,
				Remaining: time.Duration(r.ends-now) * time.Microsecond,
			})
		}
	}
	return state
}

// micros is a duration in µs, rounded up: a hold is not to end before its holder thinks so.
func micros(d time.Duration) int64 {
	m := d.Microseconds()
	if time.Duration(m)*time.Microsecond < d {
		m++
	}
	return m
}
