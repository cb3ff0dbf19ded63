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
	ask   store.PermitRequest
	of    *semaphoreState
	grant store.Grant
	index int           // in of.permits
	barge *list.Element // in of.barging
}

// extend starts the permit's TTL anew.
func (p *permit) extend(now int64, ttl time.Duration) {
	p.until = now + micros(ttl)
	heap.Fix(&p.of.permits, p.index)
}

// permits are those of one semaphore that are held or reserved: a heap, so that the one that ends
// first is first, and the sum of their weights, which Push, Pop, and sweep alone change.
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
	h.weight += p.ask.Weight
}

// Pop implements heap.Interface.
func (h *permits) Pop() any {
	last := len(h.all) - 1
	p := h.all[last]
	h.all[last] = nil
	h.all = h.all[:last]
	h.weight -= p.ask.Weight
	return p
}

// sweep removes all that have ended, and calls gone for them.
func (h *permits) sweep(now int64, gone func(*permit)) {
	live := h.all[:0]
	for _, p := range h.all {
		if now < p.until {
			p.index = len(live)
			live = append(live, p)
		} else {
			h.weight -= p.ask.Weight
			gone(p)
		}
	}
	clear(h.all[len(live):])
	h.all = live
	heap.Init(h)
}

// ends is when the first of them ends.
func (h *permits) ends() int64 {
	if len(h.all) == 0 {
		return never
	}
	return h.all[0].until
}

// semaphoreState is one semaphore: who has permits, and who waits. Its shard's mutex guards it. As
// with a lock, nothing happens in the background.
type semaphoreState struct {
	shard   *permitShard
	key     resourceKey
	permits permits
	queue   queue[*permit]
	barging list.List // those in the queue who may overtake, in order of arrival
	most    int       // nobody in the queue has a larger capacity
}

func (l *semaphoreState) line() *queue[*permit] { return &l.queue }

func (l *semaphoreState) soonest() int64 { return min(l.permits.ends(), l.queue.loses()) }

// advance makes happen what time has done. It may drop the semaphore.
func (l *semaphoreState) advance(now int64) {
	if now < l.soonest() {
		return
	}
	l.expire(now)
	for p, ok := l.queue.lost(now); ok; p, ok = l.queue.lost(now) {
		l.remove(p)
	}
	l.admit(now)
	l.settle()
}

// expire removes the permits that have ended. A few are taken from the heap one by one; where there
// are many, all are looked at, which costs less for each of them.
func (l *semaphoreState) expire(now int64) {
	for range 64 + l.permits.Len()/64 {
		if now < l.permits.ends() {
			return
		}
		l.remove(l.permits.all[0])
	}
	l.permits.sweep(now, l.forget)
}

// fits reports whether a request may have its permit beside those that there are.
func (l *semaphoreState) fits(ask *store.PermitRequest) bool {
	return ask.Weight <= ask.Capacity-l.permits.weight
}

// admit gives permits to those at the head of the queue, up to the first that does not fit, and to
// those behind it who may overtake it and fit.
func (l *semaphoreState) admit(now int64) {
	for p, ok := l.queue.head(); ok && l.fits(&p.ask); p, ok = l.queue.head() {
		l.admitOne(p, now)
	}
	for e := l.barging.Front(); e != nil && l.permits.weight < l.most; {
		next := e.Next()
		if p := e.Value.(*permit); l.fits(&p.ask) {
			l.admitOne(p, now)
		}
		e = next
	}
}

func (l *semaphoreState) admitOne(p *permit, now int64) {
	l.leaveQueue(p)
	if p.awaiting > 0 {
		l.grant(p, now)
		p.poke()
		return
	}
	p.stage, p.until = reserved, now+turnKept
	heap.Push(&l.permits, p)
}

// grant gives its permit to a request that is new, from the queue, or reserved.
func (l *semaphoreState) grant(p *permit, now int64) {
	s := l.shard.store
	p.grant.Sent = s.start.Add(time.Duration(now) * time.Microsecond)
	p.grant.Fence, _ = s.fences.mint(1, now)
	if p.stage == reserved {
		p.stage = holding
		p.extend(now, p.ask.TTL)
		return
	}
	p.stage, p.until = holding, now+micros(p.ask.TTL)
	heap.Push(&l.permits, p)
}

// setCapacity gives a request in the queue another capacity, which may let it in, and those behind it.
func (l *semaphoreState) setCapacity(p *permit, capacity int, now int64) {
	p.ask.Capacity = capacity
	l.most = max(l.most, capacity)
	l.admit(now)
	l.settle()
}

// enqueue puts a new request at the end of the queue.
func (l *semaphoreState) enqueue(p *permit, now int64) {
	if l.queue.len() == 0 {
		l.most = 0
	}
	l.most = max(l.most, p.ask.Capacity)
	l.queue.push(p, now)
	if p.ask.Barging {
		p.barge = l.barging.PushBack(p)
	}
}

func (l *semaphoreState) leaveQueue(p *permit) {
	l.queue.remove(p)
	if p.barge != nil {
		l.barging.Remove(p.barge)
		p.barge = nil
	}
}

// remove ends a request at any stage. Others may be admitted then.
func (l *semaphoreState) remove(p *permit) {
	if p.stage == queued {
		l.leaveQueue(p)
	} else {
		heap.Remove(&l.permits, p.index)
	}
	l.forget(p)
}

func (l *semaphoreState) forget(p *permit) {
	p.stage = gone
	l.shard.forget(p.id)
}

// end removes a request that was released, and has others admitted.
func (l *semaphoreState) end(p *permit, now int64) {
	p.withdrawn = true
	l.remove(p)
	l.admit(now)
	l.settle()
	p.poke() // whoever awaits it
}

// settle ends every change: it sees to it that somebody watches the clock, and drops a semaphore
// that nobody uses or waits for.
func (l *semaphoreState) settle() {
	if l.permits.Len() == 0 && l.queue.len() == 0 {
		l.shard.drop(l.key, l)
		return
	}
	l.queue.watch(l.soonest())
}

// refusal is the reply to a request that has no permit.
func (l *semaphoreState) refusal(outcome store.AcquireOutcome, now int64) store.PermitReply {
	reply := store.PermitReply{Outcome: outcome, InUse: l.permits.weight, Waiting: l.queue.len()}
	if outcome == store.Queued {
		reply.Waiting--
	}
	if l.permits.Len() > 0 {
		reply.Remaining = time.Duration(l.permits.ends()-now) * time.Microsecond
	}
	return reply
}

// state is what the store says of the semaphore.
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
			Fence: p.grant.Fence, Weight: p.ask.Weight, Meta: p.ask.Holder,
			Remaining: time.Duration(p.until-now) * time.Microsecond,
		})
	}
	return state
}
