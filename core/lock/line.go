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

// A line is the goroutines of this process that want the same lock. One of them asks the store, or
// one place in the store's queue stands for them all; a hold is handed on along the line, within
// bounds, before it goes back to the store.
//
// While a line is in core.lines, exactly one of these is so: the process has the lock (hold), the
// line waits in the store (cancel), or a call to the store, to ask or to release, is in flight. Only in the
// first two cases does the process know who has the lock.
// core.mu guards its fields.
type line struct {
	key     lineKey
	hold    *hold
	waiters list.List          // of *waiter
	tries   list.List          // of *waiter: callers that do not wait for the lock, but for the call in flight
	cancel  context.CancelFunc // ends the wait in the store
	reply   store.LockReply    // what the store said of the others, when the line was queued there
	alarm   *time.Timer        // when the hold expires; set while somebody waits for it
	first   hold               // the memory of the line's first hold
}

// lineKey says who can stand in one line: holds with other settings are no use to each other.
type lineKey struct {
	key    string
	config config
}

// waiter is a goroutine in a line.
type waiter struct {
	in    *list.List    // of the line
	place *list.Element // in that list; nil once it has had its turn
	turn  chan turn     // has room for the one that comes
}

// memory returns room for a hold: that in the line, for the first one. Only the caller whose turn it is to
// ask the store calls it.
func (ln *line) memory() *hold {
	if ln == nil || ln.first.core != nil {
		return new(hold)
	}
	return &ln.first
}

// turn is what a waiter gets: a hold, an error, or, without either, the task to ask the store.
type turn struct {
	hold *hold
	err  error
}

// known reports whether the process knows who has the lock: it does itself, or the store has said that
// others do. The caller holds core.mu.
func (ln *line) known() bool { return ln.hold != nil || ln.cancel != nil }

const (
	// maxPasses is how often a hold is used, and maxRun for how long it is handed on, before other
	// processes have their turn.
	maxPasses = 16
	maxRun    = 50 * time.Millisecond
)

// pass readies a hold for the next of the line. It reports false if the hold must go back to the
// store.
func (h *hold) pass() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.shared, h.fence >= h.lastFence, h.passes+1 >= maxPasses:
		return false
	case time.Since(h.began) >= min(h.config.ttl, maxRun), !h.term.Valid(), h.term.Remaining() <= h.config.ttl/3*2:
		return false
	}
	h.passes++
	h.fence++
	h.term.Detach()
	return true
}

func (l *Locker) acquireInLine(ctx context.Context, key string, wait bool, x telemetry.Acquisition) (*Lease, error) {
	k := lineKey{key, l.config}
	l.mu.Lock()
	ln := l.lines[k]
	if ln != nil && ln.hold != nil && !ln.hold.term.Valid() { // nobody has released it, nor will a timer before us
		l.nextLocked(ln)
		ln = l.lines[k]
	}
	if ln == nil {
		k.key = strings.Clone(key) // a key cut out of a request would keep all of its text in memory with the hold
		ln = &line{key: k}
		l.lines[k] = ln
		l.mu.Unlock()
		return l.askForLine(ctx, ln, wait, x)
	}
	if !wait && ln.known() {
		defer l.mu.Unlock()
		return nil, ln.held(nil)
	}
	w := &waiter{turn: make(chan turn, 1)}
	if !wait {
		w.in = &ln.tries
		w.place = w.in.PushBack(w)
		l.mu.Unlock()
		return l.waitInLine(ctx, ln, w, x)
	}
	w.in = &ln.waiters
	w.place = w.in.PushBack(w)
	l.watch(ln)
	ahead := ln.hold
	holder, span := cutSpan(ln.reply.Holder)
	l.mu.Unlock()
	if ahead != nil {
		holder, span = ahead.holder()
	}
	x.Behind(holder, span)
	return l.waitInLine(ctx, ln, w, x)
}

// askForLine asks the store. It is the caller's turn.
func (l *Locker) askForLine(ctx context.Context, ln *line, wait bool, x telemetry.Acquisition) (*Lease, error) {
	if ctx.Err() != nil || l.closing.Err() != nil {
		l.next(ln)
		if ctx.Err() != nil {
			return nil, lease.Ended(ctx)
		}
		return nil, ErrClosed
	}
	req := l.request(ctx, ln.key.key, exclusively, wait)
	reply, err := l.ask(ctx, req)
	if err != nil {
		l.failed(ctx, ln, reply, err)
		return nil, err
	}
	if reply.Outcome == store.Granted {
		h, err := l.newHold(req, reply.Grant, ln)
		if err != nil {
			l.failed(ctx, ln, reply, err)
			return nil, err
		}
		l.got(ln, h)
		return l.start(ctx, h)
	}

	// The place in the store's queue is the line's, so that it is not lost if the caller leaves.
	w := &waiter{turn: make(chan turn, 1), in: &ln.waiters}
	waiting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l.mu.Lock()
	w.place = w.in.PushFront(w)
	ln.cancel, ln.reply = cancel, reply
	ln.refuse(func() error { return ln.held(nil) })
	l.mu.Unlock()
	x.Behind(cutSpan(reply.Holder))
	l.errands.Run(func() { l.waitForLine(waiting, ln, req) })
	return l.waitInLine(ctx, ln, w, x)
}

// got notes that the line has a hold.
func (l *Locker) got(ln *line, h *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ln.hold = h
	l.watch(ln)
	ln.refuse(func() error { return ln.held(nil) })
}

// failed notes what came of a request that got nothing, for callers of TryLock that came meanwhile: that
// others have the lock, or that the store is unavailable. What else has stopped the request was about its
// own caller, so the next caller asks.
func (l *Locker) failed(ctx context.Context, ln *line, reply store.LockReply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case errors.Is(err, ErrNotAcquired):
		ln.refuse(func() error { return held(reply, nil) })
	case ctx.Err() == nil && errors.Is(err, store.ErrUnavailable):
		ln.refuse(func() error { return err })
	}
	l.nextLocked(ln)
}

// refuse gives an error to every caller of TryLock that waits for the call in flight. The caller of refuse
// holds core.mu.
func (ln *line) refuse(err func() error) {
	for first := ln.tries.Front(); first != nil; first = ln.tries.Front() {
		first.Value.(*waiter).have(turn{err: err()})
	}
}

// have gives a waiter its turn. The caller holds core.mu.
func (w *waiter) have(t turn) {
	w.in.Remove(w.place)
	w.place = nil
	w.turn <- t
}

// waitForLine waits in the store, and gives what comes of it to the first of the line.
func (l *Locker) waitForLine(ctx context.Context, ln *line, req store.LockRequest) {
	stop := context.AfterFunc(l.closing, func() { l.cancelWait(ln) })
	grant, err := l.store.AwaitLock(ctx, req)
	stop()
	left := ctx.Err() != nil
	l.cancelWait(ln)
	if err != nil {
		l.giveBack(req.Ref())
		if !left {
			l.hand(ln, turn{err: err})
		}
		l.next(ln)
		return
	}
	h, err := l.newHold(req, grant, ln)
	if err != nil {
		l.hand(ln, turn{err: err})
		l.next(ln)
		return
	}
	l.got(ln, h)
	if !l.hand(ln, turn{hold: h}) { // everybody has left
		_ = l.leave(context.Background(), h)
	}
}

// cancelWait ends the line's wait in the store, if there is one.
func (c *core) cancelWait(ln *line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ln.cancel != nil {
		ln.cancel()
		ln.cancel = nil
	}
}

// waitInLine waits for the caller's turn.
func (l *Locker) waitInLine(ctx context.Context, ln *line, w *waiter, x telemetry.Acquisition) (*Lease, error) {
	var err error
	select {
	case t := <-w.turn:
		return l.take(ctx, ln, w, t, x)
	case <-ctx.Done():
		err = lease.Ended(ctx)
	case <-l.closing.Done():
		err = ErrClosed
	}
	l.mu.Lock()
	if w.place == nil { // its turn came just now: the next shall have it
		l.mu.Unlock()
		l.decline(ln, <-w.turn)
		return nil, err
	}
	w.in.Remove(w.place)
	w.place = nil
	if ctx.Err() != nil && ln.known() {
		err = ln.held(err)
	}
	if ln.waiters.Len() == 0 && ln.cancel != nil {
		ln.cancel()
		ln.cancel = nil
	}
	l.mu.Unlock()
	return nil, err
}

func (l *Locker) take(ctx context.Context, ln *line, w *waiter, t turn, x telemetry.Acquisition) (*Lease, error) {
	switch {
	case t.err != nil:
		return nil, t.err
	case t.hold != nil:
		return l.start(ctx, t.hold)
	}
	return l.askForLine(ctx, ln, w.in == &ln.waiters, x)
}

// decline gives a turn on.
func (l *Locker) decline(ln *line, t turn) {
	switch {
	case t.hold != nil:
		l.errands.Run(func() { _ = l.leave(context.Background(), t.hold) })
	case t.err == nil:
		l.next(ln)
	}
}

// held is the error of a caller who does not get the lock. The caller holds core.mu.
func (ln *line) held(cause error) *HeldError {
	if ln.hold == nil {
		err := held(ln.reply, cause)
		err.Waiting += ln.waiters.Len()
		return err
	}
	return &HeldError{
		Holder: ln.key.config.holder, Remaining: ln.hold.term.Remaining(), Waiting: ln.waiters.Len(), cause: cause,
	}
}

// hand gives a turn to the first of the line. It reports false if there is nobody.
func (c *core) hand(ln *line, t turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handLocked(ln, t)
}

func (c *core) handLocked(ln *line, t turn) bool {
	first := ln.waiters.Front()
	if first == nil {
		return false
	}
	first.Value.(*waiter).have(t)
	if t.hold != nil {
		c.watch(ln)
	}
	return true
}

// next has the first of the line ask the store: a caller of TryLock if nobody waits for the lock. Without
// anybody the line goes.
func (c *core) next(ln *line) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nextLocked(ln)
}

func (c *core) nextLocked(ln *line) {
	ln.hold = nil
	c.unwatch(ln)
	if c.handLocked(ln, turn{}) {
		return
	}
	if try := ln.tries.Front(); try != nil {
		try.Value.(*waiter).have(turn{})
		return
	}
	delete(c.lines, ln.key)
}

// leave ends a lease on a hold: the next of the line has it, or the store.
func (c *core) leave(ctx context.Context, h *hold) error {
	c.errands.Begin()
	defer c.errands.End()
	ln := h.line
	mine := false
	if ln != nil {
		c.mu.Lock()
		if mine = ln.hold == h; mine {
			if ln.waiters.Len() > 0 && c.closing.Err() == nil && h.pass() {
				h.ended(telemetry.Released)
				c.handLocked(ln, turn{hold: h})
				c.mu.Unlock()
				return nil
			}
			ln.hold = nil // the line stays until the store has it
			c.unwatch(ln)
		}
		c.mu.Unlock()
	}
	held, err := c.release(ctx, h)
	if mine {
		c.next(ln)
	}
	if err == nil && !held {
		h.lost(h.why())
		return ErrLost
	}
	h.ended(telemetry.Released)
	return err
}

// letGo lets the line go on without its hold, which has ended, or is no longer exclusive.
func (c *core) letGo(ln *line, h *hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ln.hold == h {
		c.nextLocked(ln)
	}
}

// watch sees to it that a hold which expires, and whose holder does not release it, does not stop
// those who wait for it. The caller holds core.mu.
func (c *core) watch(ln *line) {
	if ln.alarm != nil || ln.hold == nil || ln.waiters.Len() == 0 {
		return
	}
	h := ln.hold
	ln.alarm = time.AfterFunc(h.term.Remaining(), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if ln.hold != h {
			return
		}
		ln.alarm = nil
		if h.term.Valid() {
			c.watch(ln)
			return
		}
		c.nextLocked(ln)
	})
}

// unwatch is called when a hold goes. The caller holds core.mu.
func (c *core) unwatch(ln *line) {
	if ln.alarm != nil {
		ln.alarm.Stop()
		ln.alarm = nil
	}
}
