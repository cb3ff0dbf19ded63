package lease

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// place is a place in the store's queue, which belongs to a local queue.
type place struct {
	queue    *queue // nil once it was withdrawn
	config   *Config
	req      store.LeaseRequest
	queued   bool
	ctx      context.Context // ends when the place is withdrawn
	withdraw context.CancelFunc
	repeat   context.CancelFunc // ends the wait to repeat the request; nil without one
}

// serve gives a queue a place in the store. If reply is nil, the request has not been sent. ctx has
// the values for the calls. The caller holds mu.
func (p *Pool) serve(ctx context.Context, q *queue, req store.LeaseRequest, reply *store.LeaseReply) {
	pl := &place{queue: q, config: q.config, req: req}
	pl.ctx, pl.withdraw = context.WithCancel(context.WithoutCancel(ctx))
	q.places = append(q.places, pl)
	if reply != nil {
		pl.wasQueued(reply)
	}
	p.calls.Run(func() { p.await(pl) })
}

// placeRequest returns the request for a place. The caller holds mu.
func (p *Pool) placeRequest(ctx context.Context, q *queue) store.LeaseRequest {
	r := Request{Config: q.config, Weight: q.weight, Wait: true, capacity: q.capacity, reserve: q.reserve}
	req := p.request(ctx, &r, q.key)
	req.MaxWaiting = 0 // it waits already
	return req
}

// wasQueued records the store's reply. The caller holds mu.
func (pl *place) wasQueued(reply *store.LeaseReply) {
	pl.req.Place = reply.Place
	if q := pl.queue; q != nil && !pl.queued {
		if q.queued++; q.queued == 1 {
			q.reply = *reply
		}
	}
	pl.queued = true
}

// leave removes the place from its queue. The caller holds mu.
func (pl *place) leave() {
	q := pl.queue
	for i, other := range q.places {
		if other == pl {
			q.places = append(q.places[:i], q.places[i+1:]...)
			q.places[:len(q.places)+1][len(q.places)] = nil
			break
		}
	}
	if pl.queued {
		q.queued--
	}
	pl.queue = nil
	pl.withdraw()
}

// withdraw withdraws all but n places, the last first. The caller holds mu.
func (p *Pool) withdraw(q *queue, n int) {
	for len(q.places) > n {
		q.places[len(q.places)-1].leave()
	}
}

// await waits for the grant of a place, and delivers it to the first waiter.
func (p *Pool) await(pl *place) {
	grant, err := p.awaitGrant(pl)
	var h *Hold
	slow := false // for a short grant
	if err == nil {
		h, err = p.newHold(&pl.req, grant, pl.config)
		slow = err != nil && grant.Untaken
	} else if pl.queued {
		p.releases.Add(pl.req.Ref(0))
	}
	p.mu.Lock()
	q := pl.queue
	if q == nil { // withdrawn
		p.mu.Unlock()
		if h != nil {
			_ = p.end(context.Background(), h, true)
		}
		return
	}
	pl.leave()
	w := first(&q.waiters)
	switch {
	case h != nil:
		q.add(h)
		if w != nil {
			w.receive(turn{hold: h})
		}
	case w != nil && !slow: // after a slow one the waiter gets another place
		w.receive(turn{err: err})
		if errors.Is(err, store.ErrUnavailable) {
			q.failTries(err)
		}
	}
	p.kick(q)
	p.mu.Unlock()
	if h != nil && w == nil {
		_ = p.end(context.Background(), h, false)
	}
}

// revise makes the place's request one of the queue's present capacity and reserve. It reports
// whether the request is to be sent, and the reference to an earlier one that it replaces. A store
// keeps requests in the order of their reserves, so one with another reserve is queued anew, with
// the number of its place. The caller holds mu.
func (p *Pool) revise(pl *place) (send bool, replaced *store.LeaseRef) {
	q := pl.queue
	switch {
	case q == nil || !pl.outdated():
		return !pl.queued, nil
	case q.reserve == pl.req.Reserve:
		pl.req.Capacity = q.capacity
		return true, nil
	}
	ref := pl.req.Ref(0)
	number := pl.req.Place
	pl.req = p.placeRequest(pl.ctx, q)
	pl.req.Place = number
	if pl.queued {
		replaced = &ref
	}
	return true, replaced
}

// outdated reports whether the capacity or the reserve has changed since the place's last request.
func (pl *place) outdated() bool {
	q := pl.queue
	return q != nil && (q.capacity != pl.req.Capacity || q.reserve != pl.req.Reserve)
}

// awaitGrant sends the place's request, unless it was queued, and waits until it is granted. If the
// capacity or the reserve changes, it sends the new one to the store, and the request keeps its
// place.
func (p *Pool) awaitGrant(pl *place) (store.Grant, error) {
	for {
		p.mu.Lock()
		send, replaced := p.revise(pl)
		p.mu.Unlock()
		if replaced != nil {
			refs := []store.LeaseRef{*replaced}
			if _, err := p.store.ReleaseLeases(context.WithoutCancel(pl.ctx), refs); err != nil {
				p.releases.Retry(refs, nil)
			}
		}
		if send {
			reply, err := p.send(pl.ctx, &pl.req)
			if err != nil || reply.Outcome == store.Granted {
				return reply.Grant, err
			}
			p.mu.Lock()
			pl.wasQueued(&reply)
			if pl.queue != nil {
				p.kick(pl.queue)
			}
			p.mu.Unlock()
		}
		ctx, cancel := context.WithCancel(pl.ctx)
		p.mu.Lock()
		if pl.outdated() {
			cancel()
		}
		pl.repeat = cancel
		p.mu.Unlock()
		grant, err := p.store.AwaitLease(ctx, pl.req)
		p.mu.Lock()
		pl.repeat = nil
		p.mu.Unlock()
		repeat := ctx.Err() != nil && pl.ctx.Err() == nil
		cancel()
		if err == nil || !repeat || errors.Is(err, store.ErrWithdrawn) {
			return grant, err
		}
	}
}

// Resize makes waiters use new capacities and reserves. Their places keep their numbers. Waiters
// whose weight no longer fits leave with the error of Mechanism.Capacity.
func (p *Pool) Resize() {
	var changed []Request
	p.mu.Lock()
	for _, q := range p.queues {
		for ; q != nil; q = q.next {
			changed = append(changed, Request{Config: q.config, Key: q.key, Weight: q.weight})
		}
	}
	p.mu.Unlock()
	for _, r := range changed {
		capacity, reserve, err := p.Capacity(r.Config, r.Key, r.Weight)
		p.mu.Lock()
		if p.queues[r.Key] != nil { // otherwise it is gone
			p.resize(p.queueOf(&r), capacity, reserve, err)
		}
		p.mu.Unlock()
	}
}

// resize is called with mu held.
func (p *Pool) resize(q *queue, capacity, reserve int, err error) {
	if err != nil {
		for w := first(&q.waiters); w != nil; w = first(&q.waiters) {
			w.receive(turn{err: err})
		}
	} else if q.setLimits(capacity, reserve) {
		for _, pl := range q.places {
			if pl.repeat != nil {
				pl.repeat()
			}
		}
	}
	p.kick(q)
}
