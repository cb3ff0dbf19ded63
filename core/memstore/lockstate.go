package memstore

import (
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

type lockShard = shard[*lockState, *request]

// request is a request for a hold, and then the hold.
type request struct {
	waiter
	req    store.LockRequest
	of     *lockState
	shared bool // as requested, or downgraded
	grant  store.Grant
	ends   int64 // when the hold expires
	index  int   // in of.holds
}

func (r *request) held(now int64) bool { return r.stage == holding && now < r.ends }

// extend restarts the hold's TTL.
func (r *request) extend(now int64, ttl, delay time.Duration) {
	r.ends = now + micros(ttl)
	r.until = r.ends + micros(delay)
	r.of.nextEnd = min(r.of.nextEnd, r.until)
}

// lockState is one lock: its holds and its waiters. Its shard's mutex guards it.
//
// Nothing happens in the background. Every use of a lock first applies what has expired, and one
// waiter sleeps no longer than until the next expiry.
type lockState struct {
	shard    *lockShard
	key      resourceKey
	holds    []*request // one exclusive or any number of shared ones; reserved, holding, or in their delay
	queue    queue[*request]
	reserved int   // number of reserved holds
	nextEnd  int64 // no hold ends by itself before
}

func (l *lockState) waiters() *queue[*request] { return &l.queue }

func (l *lockState) nextDeadline() int64 { return min(l.nextEnd, l.queue.nextExpiry()) }

// advance applies what has expired. It may drop the lock.
func (l *lockState) advance(now int64) {
	if now < l.nextDeadline() {
		return
	}
	if now >= l.nextEnd {
		l.nextEnd = never
		for i := len(l.holds) - 1; i >= 0; i-- { // backwards, since a removal moves the last one
			if r := l.holds[i]; r.until <= now {
				l.remove(r)
			} else {
				l.nextEnd = min(l.nextEnd, r.until)
			}
		}
	}
	for r, ok := l.queue.expired(now); ok; r, ok = l.queue.expired(now) {
		l.remove(r)
	}
	l.admit(now)
	l.settle()
}

// admits reports whether a request is compatible with the current holds.
func (l *lockState) admits(shared bool) bool {
	return len(l.holds) == 0 || shared && l.holds[0].shared
}

// admit grants the lock to the head of the queue if it is compatible: one exclusive request, or all
// shared ones before the next exclusive one.
func (l *lockState) admit(now int64) {
	for r, ok := l.queue.head(); ok && l.admits(r.shared); r, ok = l.queue.head() {
		l.queue.remove(r)
		if r.awaiting > 0 {
			l.hold(r, now)
			r.notify()
			continue
		}
		l.join(r)
		r.stage, r.until = reserved, now+reservedFor
		l.reserved++
		l.nextEnd = min(l.nextEnd, r.until)
	}
}

func (l *lockState) join(r *request) {
	r.index = len(l.holds)
	l.holds = append(l.holds, r)
}

// hold turns a request into a hold: a new one, one from the queue, or a reserved one.
func (l *lockState) hold(r *request, now int64) {
	if r.stage == reserved {
		l.reserved--
	} else {
		l.join(r)
	}
	n := 1
	if !r.shared {
		n = min(max(r.req.Fences, 1), store.MaxFences)
	}
	s := l.shard.store
	r.stage = holding
	r.grant.Sent = s.start.Add(time.Duration(now) * time.Microsecond)
	r.grant.Fence, r.grant.LastFence = s.fences.mint(n, now)
	r.extend(now, r.req.TTL, r.req.Delay)
}

// remove removes a request at any stage. The caller admits others.
func (l *lockState) remove(r *request) {
	if r.place != nil {
		l.queue.remove(r)
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
	l.shard.forget(r.id)
}

// release removes a released request, and admits others.
func (l *lockState) release(r *request, now int64) {
	r.withdrawn = true
	l.remove(r)
	l.admit(now)
	l.settle()
	r.notify() // calls that await it
}

// settle is called after every change: it wakes the timekeeper if the next deadline is earlier, and
// drops a lock without holds and waiters.
func (l *lockState) settle() {
	if len(l.holds) == 0 && l.queue.len() == 0 {
		l.shard.drop(l.key, l)
		return
	}
	l.queue.wakeBefore(l.nextDeadline())
}

// refusal returns the reply to a request that does not get the lock.
func (l *lockState) refusal(outcome store.AcquireOutcome, now int64) store.LockReply {
	reply := store.LockReply{Outcome: outcome, Waiting: l.waitingCount()}
	if outcome == store.Queued {
		reply.Waiting--
	}
	left := int64(0)
	for _, r := range l.holds {
		if r.held(now) {
			reply.Holder = r.req.Holder
			left = max(left, r.ends-now)
		} else {
			left = max(left, r.until-now)
		}
	}
	reply.Remaining = time.Duration(left) * time.Microsecond
	return reply
}

func (l *lockState) waitingCount() int { return l.queue.len() + l.reserved }

// state returns the public state of the lock.
func (l *lockState) state(now int64) store.LockState {
	state := store.LockState{Key: l.key.key, Waiting: l.waitingCount()}
	for _, r := range l.holds {
		if r.held(now) {
			state.Holders = append(state.Holders, store.LockHolder{
				Fence: r.grant.Fence, LastFence: r.grant.LastFence, Shared: r.shared, Meta: r.req.Holder,
				Remaining: time.Duration(r.ends-now) * time.Microsecond,
			})
		}
	}
	return state
}
