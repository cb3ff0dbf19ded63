package waiting

import (
	"cmp"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// waiter is a request that is, or will be, in a queue. Process.mu guards it.
type waiter[R Record] struct {
	id      string
	key     *Key[R] // nil until it is queued
	place   int64
	left    time.Time // since when no call awaits it
	awaited int       // calls that await it
	asking  int       // calls in flight that may create the request
	pushed  *pushedGrant
	ask     bool
	over    error
	woken   chan struct{} // has an element if pushed, ask or over was set; nil before a call awaits it
}

// keptUnawaited is how long a request is kept while no call awaits it.
const keptUnawaited = 3 * time.Second

// expect registers a request that is about to be sent, so that no push comes too early.
func (p *Process[R]) expect(id string) *waiter[R] {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.byID[id]
	if w == nil {
		if w, _ = p.spare.Get().(*waiter[R]); w == nil {
			w = new(waiter[R])
		}
		*w = waiter[R]{id: id}
		p.byID[id] = w
	}
	p.begin(w)
	return w
}

// begin counts a call that may create a request. The caller holds mu.
func (p *Process[R]) begin(w *waiter[R]) {
	w.asking++
	p.inFlight++
}

// answered records the reply to a request.
func (p *Process[R]) answered(w *waiter[R], record R, reply *Reply, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.asking--
	p.inFlight--
	if p.byID[w.id] != w {
		return // it was released during the call
	}
	switch {
	case err != nil:
		if w.key == nil && w.awaited == 0 && w.asking == 0 {
			p.remove(w)
		}
	case reply.Outcome == store.Queued:
		w.place, w.left = reply.Place, time.Now()
		p.enqueue(w, record)
		w.key.heard = w.left
		p.schedule(w.key, reply.Next)
	default:
		if reply.Outcome == store.Granted && (reply.Repeated || w.key != nil) {
			p.held[w.id] = reply.Fence
		}
		if w.awaited == 0 {
			p.remove(w)
			if w.woken == nil && w.asking == 0 { // only its one call had it, which has ended
				p.spare.Put(w)
			}
			return
		}
		if w.key != nil {
			p.dequeue(w)
		}
		if reply.Outcome == store.Granted { // another call than this one may await it
			w.ask = true
			w.wake()
		}
	}
}

// enqueue adds a request to the waiters of its key. The caller holds mu.
func (p *Process[R]) enqueue(w *waiter[R], record R) {
	if w.key != nil {
		return
	}
	name := record.Name()
	k := p.keys[name]
	if k == nil {
		now := time.Now()
		k = &Key[R]{Record: record, waiters: make(map[*waiter[R]]struct{}), heard: now, due: now.Add(beatEvery)}
		p.keys[name] = k
		p.due.Push(k)
	}
	w.key = k
	k.waiters[w] = struct{}{}
}

// dequeue is the reverse of enqueue. The caller holds mu.
func (p *Process[R]) dequeue(w *waiter[R]) {
	k := w.key
	w.key = nil
	delete(k.waiters, w)
	if len(k.waiters) == 0 {
		delete(p.keys, k.Record.Name())
		p.due.Remove(k)
	}
}

// remove removes a request. The caller holds mu.
func (p *Process[R]) remove(w *waiter[R]) {
	if w.key != nil {
		p.dequeue(w)
	}
	if p.byID[w.id] == w {
		delete(p.byID, w.id)
	}
}

// await registers a call that awaits a request. It returns nil if the request was withdrawn.
func (p *Process[R]) await(req *store.LeaseRequest, record R) *waiter[R] {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.byID[req.ID]
	if w == nil && p.withdrawn.Len() > 0 && p.withdrawn.Get(req.ID, p.clock()) != nil {
		return nil
	}
	if w == nil {
		w = &waiter[R]{id: req.ID, place: req.Place, ask: true}
		p.byID[req.ID] = w
	}
	if w.woken == nil {
		w.woken = make(chan struct{}, 1)
		w.wake() // for earlier events
	}
	p.enqueue(w, record)
	w.awaited++
	return w
}

// leave is the reverse of await. The request is kept for a while if it still waits.
func (p *Process[R]) leave(w *waiter[R]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.awaited--
	w.left = time.Now()
	if w.awaited > 0 {
		w.wake() // one wake-up reaches one call
	} else if w.key == nil {
		p.remove(w)
	}
}

// next returns the news of a request: a push, or that the call has to ask the store, or the error
// that ends the wait. A usable push turns the request into a hold. A call that asks is counted, and
// gets the request's place.
func (p *Process[R]) next(w *waiter[R], req *store.LeaseRequest, usable func(*pushedGrant) bool) (
	granted *pushedGrant, ask bool, over error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	granted, ask, over = w.pushed, w.ask, w.over
	w.pushed, w.ask = nil, false
	switch {
	case over != nil:
		return nil, false, over
	case granted != nil && usable(granted):
		p.held[w.id] = granted.first
		if w.key != nil {
			p.dequeue(w)
		}
		return granted, false, nil
	}
	if ask = ask || granted != nil; ask {
		p.begin(w)
		req.Place = cmp.Or(req.Place, w.place)
	}
	return nil, ask, nil
}

// MayArrive reports whether a request may still be on its way to the server. Its release then
// leaves a tombstone for LateFor, by which the server refuses the request.
func (p *Process[R]) MayArrive(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.byID[id]
	return w != nil && w.asking > 0 || p.late.has(id)
}

// push records the push of a grant. It returns false if the grant is of no use and is to be
// released.
func (p *Process[R]) push(g *pushedGrant) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fence, ok := p.held[g.id]; ok {
		return fence == g.first
	}
	w := p.byID[g.id]
	if w == nil {
		return false
	}
	w.pushed = g
	w.wake()
	return true
}

// Released records that the server has confirmed the release of a request. It ends its wait.
func (p *Process[R]) Released(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late.remove(id)
	delete(p.held, id)
	if w := p.byID[id]; w != nil {
		if now := p.clock(); w.woken == nil && w.key != nil && p.withdrawn.Room(1, now) {
			p.withdrawn.Remove(id)
			p.withdrawn.Add(id, struct{}{}, now+int64(LateFor), now) // a call may be about to await it
		}
		w.end(store.ErrWithdrawn)
		p.remove(w)
	}
}

// clock returns the time since the process was created.
func (p *Process[R]) clock() int64 { return int64(time.Since(p.began)) }

// Late records that a request may still be on its way to the server after its call has ended.
func (p *Process[R]) Late(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late.add(id)
}

// askAgain records that the store did not reply to a call that asked for a request.
func (p *Process[R]) askAgain(w *waiter[R], err error) {
	p.mu.Lock()
	k := w.key
	w.ask = true
	p.mu.Unlock()
	if k != nil {
		p.Silent(k, err)
	}
}

// wake wakes a call that awaits the request. The caller holds mu.
func (w *waiter[R]) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

// end ends the wait. The caller holds mu.
func (w *waiter[R]) end(err error) {
	if w.over == nil {
		w.over = err
	}
	w.wake()
}
