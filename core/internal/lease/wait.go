package lease

import (
	"container/list"
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// waiter is a goroutine in a queue.
type waiter struct {
	ctx     context.Context
	number  int           // in the order of arrival
	in      *list.List    // of the queue
	element *list.Element // in that list; nil once it was removed
	ready   chan turn     // has room for the only value
}

// turn is a hold, an error or, without either, the task to send a request.
type turn struct {
	hold *Hold
	err  error
}

// acquireQueued sends a request. While the process has, or requests, as much as there is room for,
// it joins the local queue instead.
func (p *Pool) acquireQueued(ctx context.Context, r *Request) (*Lease, error) {
	p.mu.Lock()
	q := p.queueOf(r)
	q.setLimits(r.capacity, r.reserve)
	if !q.room() {
		q.dropEnded()
	}
	waiting, ahead := p.waiting(q)
	switch {
	case !r.Wait && (ahead || q.known()):
		err := p.refusal(q, false, nil)
		p.kick(q)
		p.mu.Unlock()
		return nil, err
	case q.room() && q.waiters.Len()+q.tries.Len() == 0:
		q.flying++
		q.arrivals++
		number := q.arrivals
		p.mu.Unlock()
		return p.sendQueued(ctx, q, r, number)
	case r.Wait && r.Config.MaxWaiting > 0 && waiting+q.foreign() >= r.Config.MaxWaiting:
		err := p.refusal(q, true, nil)
		p.kick(q)
		p.mu.Unlock()
		return nil, err
	}
	w := &waiter{ctx: ctx, in: &q.waiters, ready: make(chan turn, 1)}
	if !r.Wait {
		w.in = &q.tries
	}
	q.arrivals++
	w.number = q.arrivals
	w.join()
	label := q.holder()
	p.kick(q)
	p.mu.Unlock()
	p.behind(r, label)
	return p.wait(ctx, q, w, r)
}

// sendQueued sends a request for a caller, and joins the queue if it has to wait.
func (p *Pool) sendQueued(ctx context.Context, q *queue, r *Request, number int) (*Lease, error) {
	var (
		req   store.LeaseRequest
		reply store.LeaseReply
		h     *Hold
	)
	err := p.over(ctx)
	if err == nil {
		req = p.request(ctx, r, q.key)
		if n := r.Config.MaxWaiting; n > 0 && r.Wait {
			req.MaxWaiting = max(n-p.Backlog(q.key), 1)
		}
		reply, err = p.send(ctx, &req)
	}
	if err == nil && reply.Outcome == store.Granted {
		h, err = p.newHold(&req, reply.Grant, r.Config)
	}
	p.mu.Lock()
	q.flying--
	if err != nil {
		if errors.Is(err, p.ErrNotAcquired) && !r.Wait || errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil {
			q.failTries(err) // other errors concern only the request's own caller
		}
		p.kick(q)
		p.mu.Unlock()
		return nil, err
	}
	if h != nil {
		q.add(h)
		p.kick(q)
		p.mu.Unlock()
		return p.start(ctx, h)
	}
	// The place in the store's queue belongs to the local queue, so that it survives the end of
	// this caller's context.
	w := &waiter{ctx: ctx, number: number, in: &q.waiters, ready: make(chan turn, 1)}
	w.join()
	if len(q.places) < maxPlaces {
		p.serve(ctx, q, req, &reply)
	} else {
		p.releases.Add(req.Ref(0))
	}
	p.kick(q)
	p.mu.Unlock()
	p.behind(r, reply.Holder)
	return p.wait(ctx, q, w, r)
}

// join puts the waiter into its list, in the order of arrival.
func (w *waiter) join() {
	for e := w.in.Back(); e != nil; e = e.Prev() {
		if e.Value.(*waiter).number < w.number {
			w.element = w.in.InsertAfter(w, e)
			return
		}
	}
	w.element = w.in.PushFront(w)
}

// leave removes the waiter from its list.
func (w *waiter) leave() {
	w.in.Remove(w.element)
	w.element = nil
}

// receive removes the waiter from its list, and gives it a turn.
func (w *waiter) receive(t turn) {
	w.leave()
	w.ready <- t
}

// first returns the first waiter of a list; nil if there is none.
func first(l *list.List) *waiter {
	if e := l.Front(); e != nil {
		return e.Value.(*waiter)
	}
	return nil
}

// wait waits for a turn.
func (p *Pool) wait(ctx context.Context, q *queue, w *waiter, r *Request) (*Lease, error) {
	select {
	case t := <-w.ready:
		switch {
		case t.err != nil:
			return nil, t.err
		case t.hold != nil:
			return p.start(ctx, t.hold)
		}
		return p.sendQueued(ctx, q, r, w.number)
	case <-ctx.Done():
	case <-p.closing.Done():
	}
	err := p.over(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if w.element == nil { // a turn has just come
		switch t := <-w.ready; {
		case t.hold != nil:
			p.calls.Run(func() { _ = p.end(context.Background(), t.hold, false) })
		case t.err == nil:
			q.flying--
			p.kick(q)
		}
		return nil, err
	}
	w.leave()
	if ctx.Err() != nil && q.known() {
		err = p.refusal(q, false, err)
	}
	p.kick(q)
	return nil, err
}
