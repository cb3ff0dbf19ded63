package memstore

import (
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

type lockShard = shard[*lockState, *request]

// request is a request for a hold, and then the hold.
type request struct {
	waiter
	ask    store.LockRequest
	of     *lockState
	shared bool // as asked for, or downgraded
	grant  store.Grant
	ends   int64 // when the hold expires
	index  int   // in of.holds
}

func (r *request) held(now int64) bool { return r.stage == holding && now < r.ends }

// extend starts the hold's TTL anew.
func (r *request) extend(now int64, ttl, delay time.Duration) {
	r.ends = now + micros(ttl)
	r.until = r.ends + micros(delay)
	r.of.leaves = min(r.of.leaves, r.until)
}

// lockState is one lock: who has it, and who waits. Its shard's mutex guards it.
//
// Nothing happens in the background. Whoever uses a lock first makes what time has done to it
// happen, and one of those who wait sleeps no longer than until the next thing that time does.
type lockState struct {
	shard    *lockShard
	key      resourceKey
	holds    []*request // one exclusive or any number of shared ones; reserved, holding, or in their delay
	queue    queue[*request]
	reserved int   // of the holds
	leaves   int64 // none of the holds leaves by itself before
}

func (l *lockState) line() *queue[*request] { return &l.queue }

func (l *lockState) soonest() int64 { return min(l.leaves, l.queue.loses()) }

// advance makes happen what time has done. It may drop the lock.
func (l *lockState) advance(now int64) {
	if now < l.soonest() {
		return
	}
	if now >= l.leaves {
		l.leaves = never
		for i := len(l.holds) - 1; i >= 0; i-- { // backwards, since a removal moves the last one
			if r := l.holds[i]; r.until <= now {
				l.remove(r)
			} else {
				l.leaves = min(l.leaves, r.until)
			}
		}
	}
	for r, ok := l.queue.lost(now); ok; r, ok = l.queue.lost(now) {
		l.remove(r)
	}
	l.admit(now)
	l.settle()
}

// admits reports whether a request may have the lock beside those who have it.
func (l *lockState) admits(shared bool) bool {
	return len(l.holds) == 0 || shared && l.holds[0].shared
}

// admit gives the lock to those at the head of the queue who may have it: one exclusive request,
// or all shared ones before the next exclusive one.
func (l *lockState) admit(now int64) {
	for r, ok := l.queue.head(); ok && l.admits(r.shared); r, ok = l.queue.head() {
		l.queue.remove(r)
		if r.awaiting > 0 {
			l.hold(r, now)
			r.poke()
			continue
		}
		l.join(r)
		r.stage, r.until = reserved, now+turnKept
		l.reserved++
		l.leaves = min(l.leaves, r.until)
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
		n = min(max(r.ask.Fences, 1), store.MaxFences)
	}
	s := l.shard.store
	r.stage = holding
	r.grant.Sent = s.start.Add(time.Duration(now) * time.Microsecond)
	r.grant.Fence, r.grant.LastFence = s.fences.mint(n, now)
	r.extend(now, r.ask.TTL, r.ask.Delay)
}

// remove ends a request at any stage. Others may be admitted then.
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

// end removes a request that was released, and has others admitted.
func (l *lockState) end(r *request, now int64) {
	r.withdrawn = true
	l.remove(r)
	l.admit(now)
	l.settle()
	r.poke() // whoever awaits it
}

// settle ends every change: it sees to it that somebody watches the clock, and drops a lock that
// nobody has or wants.
func (l *lockState) settle() {
	if len(l.holds) == 0 && l.queue.len() == 0 {
		l.shard.drop(l.key, l)
		return
	}
	l.queue.watch(l.soonest())
}

// refusal is the reply to a request that does not have the lock.
func (l *lockState) refusal(outcome store.AcquireOutcome, now int64) store.LockReply {
	reply := store.LockReply{Outcome: outcome, Waiting: l.waiting()}
	if outcome == store.Queued {
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

func (l *lockState) waiting() int { return l.queue.len() + l.reserved }

// state is what the store says of the lock.
func (l *lockState) state(now int64) store.LockState {
	state := store.LockState{Key: l.key.key, Waiting: l.waiting()}
	for _, r := range l.holds {
		if r.held(now) {
			state.Holders = append(state.Holders, store.LockHolder{
				Fence: r.grant.Fence, LastFence: r.grant.LastFence, Shared: r.shared, Meta: r.ask.Holder,
				Remaining: time.Duration(r.ends-now) * time.Microsecond,
			})
		}
	}
	return state
}
