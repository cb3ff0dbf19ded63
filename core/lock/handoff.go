package lock

import (
	"container/list"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// localQueue holds this process's waiters for one lock. At most one request of theirs is in the
// store, which stands for all of them; a hold is handed on among them, within limits, before it is
// released in the store.
//
// While a queue is in core.queues, exactly one of these holds: the process has the lock (hold), a
// request is queued in the store (cancel), or a call to the store, to acquire or to release, is in
// flight. Only in the first two cases the holder of the lock is known. core.mu guards the fields.
type localQueue struct {
	key        queueKey
	hold       *hold
	waiters    list.List          // of *waiter
	tryWaiters list.List          // of *waiter: callers of TryLock, which wait only for the call in flight
	cancel     context.CancelFunc // ends the wait in the store
	reply      store.LockReply    // the store's reply when the request was queued there
	expiry     *time.Timer        // fires when the hold expires; set while there are waiters
	firstHold  hold               // memory of the first hold
}

// queueKey identifies a local queue: waiters with different settings cannot share a hold.
type queueKey struct {
	key    string
	config config
}

// waiter is a goroutine in a local queue.
type waiter struct {
	in    *list.List    // waiters or tryWaiters
	place *list.Element // in that list; nil once it was removed
	ready chan handOff  // has room for the only value
}

// allocHold returns memory for a hold, for the first one that of the queue. Only the goroutine with
// the request in flight calls it.
func (q *localQueue) allocHold() *hold {
	if q == nil || q.firstHold.core != nil {
		return new(hold)
	}
	return &q.firstHold
}

// handOff is what a waiter receives: a hold, an error or, without either, the task to send the next
// request.
type handOff struct {
	hold *hold
	err  error
}

// holderKnown reports whether the holder of the lock is known: this process, or others by the
// store's reply. The caller holds core.mu.
func (q *localQueue) holderKnown() bool { return q.hold != nil || q.cancel != nil }

const (
	// maxHandOffs is how many leases a hold carries, and maxRunTime how long it is handed on,
	// before other processes get the lock.
	maxHandOffs = 16
	maxRunTime  = 50 * time.Millisecond
)

// prepareHandOff prepares a hold for the next waiter. It returns false if the hold must be released
// in the store.
func (h *hold) prepareHandOff() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.shared, h.fence >= h.lastFence, h.handOffs+1 >= maxHandOffs:
		return false
	case time.Since(h.began) >= min(h.config.ttl, maxRunTime), !h.term.Valid(), h.term.Remaining() <= h.config.ttl/3*2:
		return false
	}
	h.handOffs++
	h.fence++
	h.term.Detach()
	return true
}

func (l *Locker) acquireQueued(ctx context.Context, key string, wait bool, x telemetry.Acquisition) (*Lease, error) {
	k := queueKey{key, l.config}
	l.mu.Lock()
	q := l.queues[k]
	if q != nil && q.hold != nil && !q.hold.term.Valid() { // it expired unreleased, and its timer has not fired yet
		l.nextLocked(q)
		q = l.queues[k]
	}
	if q == nil {
		k.key = strings.Clone(key) // a substring of a request would keep the whole request in memory
		q = &localQueue{key: k}
		l.queues[k] = q
		l.mu.Unlock()
		return l.requestForQueue(ctx, q, wait, x)
	}
	if !wait && q.holderKnown() {
		defer l.mu.Unlock()
		return nil, q.heldError(nil)
	}
	w := &waiter{ready: make(chan handOff, 1)}
	if !wait {
		w.in = &q.tryWaiters
		w.place = w.in.PushBack(w)
		l.mu.Unlock()
		return l.waitLocally(ctx, q, w, x)
	}
	w.in = &q.waiters
	w.place = w.in.PushBack(w)
	l.watchExpiry(q)
	ahead := q.hold
	holder, span := cutSpan(q.reply.Holder)
	l.mu.Unlock()
	if ahead != nil {
		holder, span = ahead.holder()
	}
	x.Behind(holder, span)
	return l.waitLocally(ctx, q, w, x)
}

// requestForQueue sends the queue's request to the store.
func (l *Locker) requestForQueue(ctx context.Context, q *localQueue, wait bool, x telemetry.Acquisition) (*Lease, error) {
	if ctx.Err() != nil || l.closing.Err() != nil {
		l.next(q)
		if ctx.Err() != nil {
			return nil, lease.Ended(ctx)
		}
		return nil, ErrClosed
	}
	req := l.request(ctx, q.key.key, exclusiveMode, wait)
	reply, err := l.send(ctx, req)
	if err != nil {
		l.requestFailed(ctx, q, reply, err)
		return nil, err
	}
	if reply.Outcome == store.Granted {
		h, err := l.newHold(req, reply.Grant, q)
		if err != nil {
			l.requestFailed(ctx, q, reply, err)
			return nil, err
		}
		l.setHold(q, h)
		return l.startLease(ctx, h)
	}

	// The place in the store's queue belongs to the local queue, so that it survives the end of
	// this caller's context.
	w := &waiter{ready: make(chan handOff, 1), in: &q.waiters}
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.mu.Lock()
	w.place = w.in.PushFront(w)
	q.cancel, q.reply = cancel, reply
	q.failTries(func() error { return q.heldError(nil) })
	l.mu.Unlock()
	x.Behind(cutSpan(reply.Holder))
	l.calls.Run(func() { l.awaitForQueue(waiting, q, req) })
	return l.waitLocally(ctx, q, w, x)
}

// setHold sets the hold of the queue.
func (l *Locker) setHold(q *localQueue, h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q.hold = h
	l.watchExpiry(q)
	q.failTries(func() error { return q.heldError(nil) })
}

// requestFailed passes the error of a request to the callers of TryLock that wait for it, if others
// hold the lock or the store is unavailable. Other errors concern only the request's own caller,
// and the next waiter sends a request.
func (l *Locker) requestFailed(ctx context.Context, q *localQueue, reply store.LockReply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, ErrNotAcquired):
		q.failTries(func() error { return heldError(reply, nil) })
	case ctx.Err() == nil && errors.Is(err, store.ErrUnavailable):
		q.failTries(func() error { return err })
	}
	l.nextLocked(q)
}

// failTries returns an error to every caller of TryLock that waits for the call in flight. The
// caller of failTries holds core.mu.
func (q *localQueue) failTries(err func() error) {
	for first := q.tryWaiters.Front(); first != nil; first = q.tryWaiters.Front() {
		first.Value.(*waiter).receive(handOff{err: err()})
	}
}

// receive removes the waiter from its list and sends it a hand-off. The caller holds core.mu.
func (w *waiter) receive(t handOff) {
	w.in.Remove(w.place)
	w.place = nil
	w.ready <- t
}

// awaitForQueue waits in the store, and delivers the outcome to the first waiter.
func (l *Locker) awaitForQueue(ctx context.Context, q *localQueue, req store.LockRequest) {
	stop := context.AfterFunc(l.closing, func() { l.cancelWait(q) })
	grant, err := l.store.AwaitLock(ctx, req)
	stop()
	left := ctx.Err() != nil
	l.cancelWait(q)
	if err != nil {
		l.releaseAsync(req.Ref())
		if !left {
			l.deliver(q, handOff{err: err})
		}
		l.next(q)
		return
	}
	h, err := l.newHold(req, grant, q)
	if err != nil {
		l.deliver(q, handOff{err: err})
		l.next(q)
		return
	}
	l.setHold(q, h)
	if !l.deliver(q, handOff{hold: h}) { // no waiter is left
		_ = l.endLease(context.Background(), h)
	}
}

// cancelWait ends the queue's wait in the store, if there is one.
func (c *core) cancelWait(q *localQueue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.cancel != nil {
		q.cancel()
		q.cancel = nil
	}
}

// waitLocally waits for a hand-off.
func (l *Locker) waitLocally(ctx context.Context, q *localQueue, w *waiter, x telemetry.Acquisition) (*Lease, error) {
	var err error
	select {
	case t := <-w.ready:
		return l.receive(ctx, q, w, t, x)
	case <-ctx.Done():
		err = lease.Ended(ctx)
	case <-l.closing.Done():
		err = ErrClosed
	}
	l.mu.Lock()
	if w.place == nil { // a hand-off has just arrived
		l.mu.Unlock()
		l.passOn(q, <-w.ready)
		return nil, err
	}
	w.in.Remove(w.place)
	w.place = nil
	if ctx.Err() != nil && q.holderKnown() {
		err = q.heldError(err)
	}
	if q.waiters.Len() == 0 && q.cancel != nil {
		q.cancel()
		q.cancel = nil
	}
	l.mu.Unlock()
	return nil, err
}

func (l *Locker) receive(ctx context.Context, q *localQueue, w *waiter, t handOff, x telemetry.Acquisition) (*Lease, error) {
	switch {
	case t.err != nil:
		return nil, t.err
	case t.hold != nil:
		return l.startLease(ctx, t.hold)
	}
	return l.requestForQueue(ctx, q, w.in == &q.waiters, x)
}

// passOn hands what a waiter received too late to the next one.
func (l *Locker) passOn(q *localQueue, t handOff) {
	switch {
	case t.hold != nil:
		l.calls.Run(func() { _ = l.endLease(context.Background(), t.hold) })
	case t.err == nil:
		l.next(q)
	}
}

// heldError returns the error of a caller that does not get the lock. The caller holds core.mu.
func (q *localQueue) heldError(cause error) *HeldError {
	if q.hold == nil {
		err := heldError(q.reply, cause)
		err.Waiting += q.waiters.Len()
		return err
	}
	return &HeldError{
		Holder: q.key.config.holder, Remaining: q.hold.term.Remaining(), Waiting: q.waiters.Len(), cause: cause,
	}
}

// deliver sends a hand-off to the first waiter. It returns false if there is none.
func (c *core) deliver(q *localQueue, t handOff) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deliverLocked(q, t)
}

func (c *core) deliverLocked(q *localQueue, t handOff) bool {
	first := q.waiters.Front()
	if first == nil {
		return false
	}
	first.Value.(*waiter).receive(t)
	if t.hold != nil {
		c.watchExpiry(q)
	}
	return true
}

// next lets the first waiter send a request, or the first caller of TryLock if there is none. It
// removes an empty queue.
func (c *core) next(q *localQueue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextLocked(q)
}

func (c *core) nextLocked(q *localQueue) {
	q.hold = nil
	c.stopWatch(q)
	if c.deliverLocked(q, handOff{}) {
		return
	}
	if try := q.tryWaiters.Front(); try != nil {
		try.Value.(*waiter).receive(handOff{})
		return
	}
	delete(c.queues, q.key)
}

// endLease ends a lease on a hold, which is handed on to the next waiter, or released in the store.
func (c *core) endLease(ctx context.Context, h *hold) error {
	c.calls.Begin()
	defer c.calls.End()
	q := h.queue
	mine := false
	if q != nil {
		c.mu.Lock()
		if mine = q.hold == h; mine {
			if q.waiters.Len() > 0 && c.closing.Err() == nil && h.prepareHandOff() {
				h.recordEnd(telemetry.Released)
				c.deliverLocked(q, handOff{hold: h})
				c.mu.Unlock()
				return nil
			}
			q.hold = nil // the queue stays until the store has the release
			c.stopWatch(q)
		}
		c.mu.Unlock()
	}
	held, err := c.release(ctx, h)
	if mine {
		c.next(q)
	}
	if err == nil && !held {
		h.recordLoss(h.endCause())
		return ErrLost
	}
	h.recordEnd(telemetry.Released)
	return err
}

// holdEnded lets the queue continue without its hold, which has ended or is no longer exclusive.
func (c *core) holdEnded(q *localQueue, h *hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.hold == h {
		c.nextLocked(q)
	}
}

// watchExpiry starts a timer so that a hold that expires unreleased does not block its waiters. The
// caller holds core.mu.
func (c *core) watchExpiry(q *localQueue) {
	if q.expiry != nil || q.hold == nil || q.waiters.Len() == 0 {
		return
	}
	h := q.hold
	q.expiry = time.AfterFunc(h.term.Remaining(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if q.hold != h {
			return
		}
		q.expiry = nil
		if h.term.Valid() {
			c.watchExpiry(q)
			return
		}
		c.nextLocked(q)
	})
}

// stopWatch stops the timer of watchExpiry. The caller holds core.mu.
func (c *core) stopWatch(q *localQueue) {
	if q.expiry != nil {
		q.expiry.Stop()
		q.expiry = nil
	}
}
