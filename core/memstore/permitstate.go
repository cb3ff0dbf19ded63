package memstore

import (
	"container/heap"
	"container/list"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

type permitShard = shard[*semaphoreState, *permit]

// permit is a request for a permit, and then the permit.
type permit struct {
	waiter
	req   store.PermitRequest
	of    *semaphoreState
	grant store.Grant
	index int           // in of.permits
	barge *list.Element // in of.barging
}

// extend restarts the permit's TTL.
func (p *permit) extend(now int64, ttl time.Duration) {
	p.until = now + micros(ttl)
	heap.Fix(&p.of.permits, p.index)
}

// permits are the held and reserved permits of a semaphore: a heap by their end, and the sum of
// their weights, which only Push, Pop and sweep change.
type permits struct {
	all    []*permit
	weight int
}

func (h *permits) Len() int           { return len(h.all) }
func (h *permits) Less(i, j int) bool { return h.all[i].until < h.all[j].until }

func (h *permits) Swap(i, j int) {
	h.all[i], h.all[j] = h.all[j], h.all[i]
	h.all[i].index, h.all[j].index = i, j
}

// Push implements heap.Interface.
func (h *permits) Push(x any) {
	p := x.(*permit)
	p.index = len(h.all)
	h.all = append(h.all, p)
	h.weight += p.req.Weight
}

// Pop implements heap.Interface.
func (h *permits) Pop() any {
	last := len(h.all) - 1
	p := h.all[last]
	h.all[last] = nil
	h.all = h.all[:last]
	h.weight -= p.req.Weight
	return p
}

// sweep removes all permits that have ended, and calls gone for each.
func (h *permits) sweep(now int64, gone func(*permit)) {
	live := h.all[:0]
	for _, p := range h.all {
		if now < p.until {
			p.index = len(live)
			live = append(live, p)
		} else {
			h.weight -= p.req.Weight
			gone(p)
		}
	}
	clear(h.all[len(live):])
	h.all = live
	heap.Init(h)
}

// nextEnd returns when the first permit ends.
func (h *permits) nextEnd() int64 {
	if len(h.all) == 0 {
		return never
	}
	return h.all[0].until
}

// semaphoreState is one semaphore: its permits and its waiters. Its shard's mutex guards it. As
// with a lock, nothing happens in the background.
type semaphoreState struct {
	shard       *permitShard
	key         resourceKey
	permits     permits
	queue       queue[*permit]
	barging     list.List // barging requests in the queue, in order of arrival
	maxCapacity int       // upper bound of the capacities in the queue
}

func (l *semaphoreState) waiters() *queue[*permit] { return &l.queue }

func (l *semaphoreState) nextDeadline() int64 { return min(l.permits.nextEnd(), l.queue.nextExpiry()) }

// advance applies what has expired. It may drop the semaphore.
func (l *semaphoreState) advance(now int64) {
	if now < l.nextDeadline() {
		return
	}
	l.expire(now)
	for p, ok := l.queue.expired(now); ok; p, ok = l.queue.expired(now) {
		l.remove(p)
	}
	l.admit(now)
	l.settle()
}

// expire removes the permits that have ended: a few one by one from the heap, many by a sweep,
// which costs less for each.
func (l *semaphoreState) expire(now int64) {
	for range 64 + l.permits.Len()/64 {
		if now < l.permits.nextEnd() {
			return
		}
		l.remove(l.permits.all[0])
	}
	l.permits.sweep(now, l.forget)
}

// fits reports whether there is room for a request beside the current permits.
func (l *semaphoreState) fits(ask *store.PermitRequest) bool {
	return ask.Weight <= ask.Capacity-l.permits.weight
}

// admit grants permits from the head of the queue up to the first request that does not fit, and to
// barging requests behind it that fit.
func (l *semaphoreState) admit(now int64) {
	for p, ok := l.queue.head(); ok && l.fits(&p.req); p, ok = l.queue.head() {
		l.admitOne(p, now)
	}
	for e := l.barging.Front(); e != nil && l.permits.weight < l.maxCapacity; {
		next := e.Next()
		if p := e.Value.(*permit); l.fits(&p.req) {
			l.admitOne(p, now)
		}
		e = next
	}
}

func (l *semaphoreState) admitOne(p *permit, now int64) {
	l.dequeue(p)
	if p.awaiting > 0 {
		l.grant(p, now)
		p.notify()
		return
	}
	p.stage, p.until = reserved, now+reservedFor
	heap.Push(&l.permits, p)
}

// grant grants a request its permit: a new one, one from the queue, or a reserved one.
func (l *semaphoreState) grant(p *permit, now int64) {
	s := l.shard.store
	p.grant.Sent = s.start.Add(time.Duration(now) * time.Microsecond)
	p.grant.Fence, _ = s.fences.mint(1, now)
	if p.stage == reserved {
		p.stage = holding
		p.extend(now, p.req.TTL)
		return
	}
	p.stage, p.until = holding, now+micros(p.req.TTL)
	heap.Push(&l.permits, p)
}

// setCapacity changes the capacity of a request in the queue, which may admit it and those behind
// it.
func (l *semaphoreState) setCapacity(p *permit, capacity int, now int64) {
	p.req.Capacity = capacity
	l.maxCapacity = max(l.maxCapacity, capacity)
	l.admit(now)
	l.settle()
}

// enqueue appends a new request to the queue.
func (l *semaphoreState) enqueue(p *permit, now int64) {
	if l.queue.len() == 0 {
		l.maxCapacity = 0
	}
	l.maxCapacity = max(l.maxCapacity, p.req.Capacity)
	l.queue.push(p, now)
	if p.req.Barging {
		p.barge = l.barging.PushBack(p)
	}
}

func (l *semaphoreState) dequeue(p *permit) {
	l.queue.remove(p)
	if p.barge != nil {
		l.barging.Remove(p.barge)
		p.barge = nil
	}
}

// remove removes a request at any stage. The caller admits others.
func (l *semaphoreState) remove(p *permit) {
	if p.stage == queued {
		l.dequeue(p)
	} else {
		heap.Remove(&l.permits, p.index)
	}
	l.forget(p)
}

func (l *semaphoreState) forget(p *permit) {
	p.stage = gone
	l.shard.forget(p.id)
}

// release removes a released request, and admits others.
func (l *semaphoreState) release(p *permit, now int64) {
	p.withdrawn = true
	l.remove(p)
	l.admit(now)
	l.settle()
	p.notify() // calls that await it
}

// settle is called after every change: it wakes the timekeeper if the next deadline is earlier, and
// drops a semaphore without permits and waiters.
func (l *semaphoreState) settle() {
	if l.permits.Len() == 0 && l.queue.len() == 0 {
		l.shard.drop(l.key, l)
		return
	}
	l.queue.wakeBefore(l.nextDeadline())
}

// refusal returns the reply to a request that does not get a permit.
func (l *semaphoreState) refusal(outcome store.AcquireOutcome, now int64) store.PermitReply {
	reply := store.PermitReply{Outcome: outcome, InUse: l.permits.weight, Waiting: l.queue.len()}
	if outcome == store.Queued {
		reply.Waiting--
	}
	if l.permits.Len() > 0 {
		reply.Remaining = time.Duration(l.permits.nextEnd()-now) * time.Microsecond
	}
	return reply
}

// state returns the public state of the semaphore.
func (l *semaphoreState) state(now int64) store.SemaphoreState {
	state := store.SemaphoreState{Key: l.key.key, InUse: l.permits.weight, Waiting: l.queue.len()}
	for _, p := range l.permits.all {
		if p.stage != holding {
			continue
		}
		if len(state.Holders) == store.MaxHolders {
			break
		}
		state.Holders = append(state.Holders, store.PermitHolder{
			Fence: p.grant.Fence, Weight: p.req.Weight, Meta: p.req.Holder,
			Remaining: time.Duration(p.until-now) * time.Microsecond,
		})
	}
	return state
}
