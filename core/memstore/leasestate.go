package memstore

import (
	"container/list"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// untakenFor is how long a grant lasts if no call awaited the request when its turn came.
const untakenFor = int64(2 * time.Second / time.Microsecond)

// lease is a request for a lease, and then the hold.
type lease struct {
	req   store.LeaseRequest // its Place is set when it joins the queue
	of    *leaseState
	stage stage
	since int64 // when it joined the queue, and then when it was granted
	until int64 // when its place expires, and then the hold

	// In the queue.
	tier        *tier
	place       *list.Element // in tier.places
	liveness    *list.Element // in of.queue.awaited or unawaited
	awaiting    int           // number of calls that await it
	awaited     bool          // a call has awaited it
	wake        chan struct{} // has room for one; nil if it never was in the queue
	sleepsUntil int64         // when the calls that await it wake up by themselves

	// As a hold.
	fence, lastFence int64
	began            int64 // when its TTL began
	index            int   // in of.holds
	untaken          bool  // no call awaited it when it was granted, and none has asked for it since
}

// stage is the progress of a request.
type stage int

const (
	queued stage = iota
	holding
	expired
	withdrawn
)

// grant returns the grant for the holder.
func (r *lease) grant() store.Grant {
	return store.Grant{
		Sent: r.of.shard.store.start.Add(duration(r.began)), TTL: duration(r.until - r.began),
		Fence: r.fence, LastFence: r.lastFence, Place: r.req.Place,
	}
}

// extend restarts the hold's TTL.
func (r *lease) extend(now int64, ttl time.Duration) {
	r.began, r.until, r.untaken = now, now+micros(ttl), false
	r.of.holds.all.Fix(r)
}

// notify wakes a call that awaits the request.
func (r *lease) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// room returns the largest weight in use that a request allows, its own included.
func room(req *store.LeaseRequest) int64 { return int64(req.Capacity) - int64(req.Reserve) }

// leaseState is one key: its holds and its waiters. Its shard's mutex guards it.
//
// Nothing happens in the background. Every use of a key first ends holds and places that have
// expired, and one waiter sleeps no longer than until the next one expires.
type leaseState struct {
	leaseKey
	shard *leaseShard
	index int // in shard.order
	holds holds
	queue leaseQueue
}

// find returns a request, or nil.
func (l *leaseState) find(id string) *lease { return l.shard.requests[leaseID{l.leaseKey, id}] }

// nextDeadline returns when the next hold or place expires.
func (l *leaseState) nextDeadline() int64 {
	if r := l.queue.firstUnawaited(); r != nil {
		return min(l.holds.nextEnd(), r.until)
	}
	return l.holds.nextEnd()
}

// advance ends holds and places that have expired, and admits waiters. It may drop the key.
func (l *leaseState) advance(now int64) {
	if now < l.nextDeadline() {
		return
	}
	l.holds.expire(now, func(r *lease) { l.forget(r, expired) })
	for r := l.queue.firstUnawaited(); r != nil && r.until <= now; r = l.queue.firstUnawaited() {
		l.queue.remove(r)
		l.forget(r, expired)
	}
	l.admit(now)
	l.settle()
}

// acquire is AcquireLease. It also returns the request if it is queued.
func (l *leaseState) acquire(req store.LeaseRequest, now int64) (store.LeaseReply, *lease, error) {
	r := l.find(req.ID)
	if r == nil {
		var refused store.LeaseReply
		var err error
		if r, refused, err = l.join(req, now); r == nil {
			return refused, nil, err
		}
	} else if r.stage == queued { // a repeat
		l.queue.refresh(r, now)
		l.setCapacity(r, req.Capacity, now)
	}
	switch r.stage {
	case queued:
		return l.refusal(store.Queued, &r.req, now), r, nil
	case withdrawn:
		return l.refusal(store.Taken, &req, now), nil, nil
	}
	if r.untaken {
		r.extend(now, r.req.TTL)
	}
	return store.LeaseReply{Outcome: store.Granted, Grant: r.grant()}, nil, nil
}

// join grants a new request, or adds it to the queue. If it does neither, it returns nil and the
// reply.
func (l *leaseState) join(req store.LeaseRequest, now int64) (*lease, store.LeaseReply, error) {
	free := l.fits(&req)
	if !free {
		possible := int64(req.Weight) <= room(&req)
		full := req.MaxWaiting > 0 && l.queue.length >= req.MaxWaiting
		if !req.Queue || !possible || full {
			reply := l.refusal(store.Taken, &req, now)
			reply.QueueFull = req.Queue && possible
			return nil, reply, nil
		}
	}
	if !l.shard.room(now) {
		return nil, store.LeaseReply{}, store.ErrFull
	}
	l.shard.add(l)
	r := &lease{req: req, of: l}
	l.shard.requests[leaseID{l.leaseKey, req.ID}] = r
	if free {
		l.grant(r, now)
	} else {
		l.enqueue(r, now)
	}
	return r, store.LeaseReply{}, nil
}

// fits reports whether a request that is not in the queue can be granted.
func (l *leaseState) fits(req *store.LeaseRequest) bool {
	ahead, blocked := l.queue.before(req)
	return !blocked && l.holds.weight+ahead+int64(req.Weight) <= room(req)
}

// admit grants the waiters that can be granted. If one of a tier cannot, the later ones of the tier
// wait.
func (l *leaseState) admit(now int64) {
	ahead := l.holds.weight
	for i := 0; i < len(l.queue.tiers); {
		t := l.queue.tiers[i]
		r := t.head()
		if weight := int64(r.req.Weight); ahead+weight <= room(&r.req) {
			ahead += weight
			l.queue.remove(r) // and perhaps its tier
			l.grant(r, now)
			continue
		}
		ahead += t.weight
		i++
	}
}

// grant makes a request, which is not in the queue, a hold. Without a call that awaits it, it holds
// for a short time, until it is taken up.
func (l *leaseState) grant(r *lease, now int64) {
	ttl := micros(r.req.TTL)
	if r.untaken = r.wake != nil && r.awaiting == 0; r.untaken {
		ttl = min(ttl, untakenFor)
	}
	r.stage, r.since, r.began, r.until = holding, now, now, now+ttl
	r.fence, r.lastFence = l.shard.store.fences.mint(min(max(r.req.Fences, 1), store.MaxFences), now)
	l.holds.add(r)
	r.notify()
}

// enqueue adds a request to the queue: at its number, or at the end.
func (l *leaseState) enqueue(r *lease, now int64) {
	places := &l.shard.store.places
	if r.req.Place == 0 {
		r.req.Place, _ = places.mint(1, now)
	} else {
		places.raise(r.req.Place) // others come behind it
	}
	r.since = now
	l.queue.push(r, now)
}

// setCapacity changes the capacity of a request in the queue. That may grant it and later ones, or
// remove it.
func (l *leaseState) setCapacity(r *lease, capacity int, now int64) {
	if r.req.Capacity == capacity {
		return
	}
	r.req.Capacity = capacity
	if int64(r.req.Weight) > room(&r.req) {
		l.withdraw(r)
	}
	l.admit(now)
}

// downgrade reduces the weight of a hold.
func (l *leaseState) downgrade(r *lease, weight int, now int64) {
	less := r.req.Weight - min(max(weight, 1), r.req.Weight)
	r.req.Weight -= less
	l.holds.weight -= int64(less)
	l.admit(now)
}

// withdraw removes a request, and ends the calls that await it. The caller admits others.
func (l *leaseState) withdraw(r *lease) {
	if r.stage == queued {
		l.queue.remove(r)
	} else {
		l.holds.remove(r)
	}
	l.forget(r, withdrawn)
	r.notify()
}

func (l *leaseState) forget(r *lease, end stage) {
	r.stage = end
	delete(l.shard.requests, leaseID{l.leaseKey, r.req.ID})
	l.shard.store.leases.requests.Add(-1)
}

// release removes a released request, and admits others.
func (l *leaseState) release(r *lease, now int64) {
	l.withdraw(r)
	l.admit(now)
}

// settle is called after every change. It wakes the timekeeper if its calls sleep longer than until
// the next deadline, and drops a key without holds and waiters.
func (l *leaseState) settle() {
	if len(l.holds.all) == 0 && l.queue.length == 0 {
		l.shard.drop(l)
		return
	}
	if r, deadline := l.queue.timekeeper(), l.nextDeadline(); r != nil && deadline < r.sleepsUntil {
		r.sleepsUntil = deadline
		r.notify()
	}
}

// refusal returns the reply to a request that is not granted.
func (l *leaseState) refusal(outcome store.AcquireOutcome, req *store.LeaseRequest, now int64) store.LeaseReply {
	reply := store.LeaseReply{Outcome: outcome, InUse: int(l.holds.weight), Waiting: l.queue.length}
	if outcome == store.Queued {
		reply.Place = req.Place
		reply.Waiting--
	}
	if len(l.holds.all) > 0 {
		reply.Holder = l.holds.all[0].req.Label
		reply.Remaining = duration(l.holds.freed(l.holds.weight+int64(req.Weight)-room(req)) - now)
	}
	return reply
}

// state returns the public state of the key.
func (l *leaseState) state(now int64) store.LeaseState {
	state := store.LeaseState{
		Key: l.key, InUse: int(l.holds.weight), Waiting: l.queue.length, Waiters: l.queue.list(now),
	}
	for _, r := range l.holds.all[:min(len(l.holds.all), store.MaxListed)] {
		state.Holders = append(state.Holders, store.LeaseHolder{
			Fence: r.fence, LastFence: r.lastFence, Weight: r.req.Weight, Label: r.req.Label,
			Age: duration(now - r.since), Remaining: duration(r.until - now),
		})
	}
	return state
}
