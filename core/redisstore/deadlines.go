package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// The client gives up at the deadline of a context, so a call runs in its caller's goroutine: a second one
// would cost as much as a round trip, since a second thread has to wake up. All calls share one timer too.

// deadlines ends calls whose time is over. They are in the order of their ends, which is nearly always the one in
// which they began.
type deadlines struct {
	mu          sync.Mutex
	first, last *deadline
	timer       *time.Timer
	set         bool      // the timer runs
	rings       time.Time // when, if it does

	spare sync.Pool // of chan struct{}, of calls that ended in time
}

// deadline is that of a call, or of a request that waits for its turn.
type deadline struct {
	at time.Time
	of interface{ expire() } // which is called once, at the deadline

	next, prev *deadline // deadlines.mu guards them, and over
	over       bool
}

// callContext is the context of a call. It ends with the caller's context, or when no connection is there by
// the first deadline. From the first write on there is as much time for the reply as a call has for that.
type callContext struct {
	context.Context // the caller's
	node            *node
	sent            wire
	deadline        deadline
	replyIn         time.Duration
	large           bool // so that it may take long
	writes          bool // it may write
	overdue         bool // the node counts it as such; deadlines.mu guards it
	done            chan struct{}
	state           atomic.Int32
	unwatch         func() bool
	refused         error // why it ended before its deadline; good once state is callExpired
}

// The states of a call's context.
const (
	callRuns int32 = iota
	callExpired
	callEnded    // in time: done may be another call's from then on, which closes it if it expires
	callRefusing // becomes callExpired once the reason is there
)

// context returns the context of a call of a node. Callers give it back, always.
func (d *deadlines) context(ctx context.Context, n *node, connectIn, replyIn time.Duration) *callContext {
	c := &callContext{Context: ctx, node: n, replyIn: replyIn}
	c.sent.call = c
	if c.done, _ = d.spare.Get().(chan struct{}); c.done == nil {
		c.done = make(chan struct{})
	}
	c.deadline.of = c
	d.begin(&c.deadline, connectIn)
	if ctx.Done() != nil {
		c.unwatch = context.AfterFunc(ctx, c.expire)
	}
	return c
}

// callOf returns the call that a context belongs to.
func callOf(ctx context.Context) *callContext {
	if c, ok := ctx.(*callContext); ok {
		return c
	}
	c, _ := ctx.Value(callKey{}).(*callContext)
	return c
}

type callKey struct{}

func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// written begins the time for the reply.
func (c *callContext) written() {
	d := &c.node.store.deadlines
	d.mu.Lock()
	defer d.mu.Unlock()
	if !c.deadline.over {
		d.remove(&c.deadline)
		d.add(&c.deadline, c.replyIn)
	}
}

// giveBack ends what a context keeps others busy with.
func (d *deadlines) giveBack(c *callContext) {
	if d.end(&c.deadline); c.overdue {
		c.node.overdue.Add(-1)
	}
	if c.unwatch != nil {
		c.unwatch()
	}
	if c.state.CompareAndSwap(callRuns, callEnded) {
		d.spare.Put(c.done)
	}
}

// begin starts a deadline.
func (d *deadlines) begin(l *deadline, timeout time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(l, timeout)
}

// add puts a deadline in its place: nearly always the last, since nearly all have as long. The caller holds mu.
func (d *deadlines) add(l *deadline, timeout time.Duration) {
	l.at, l.over = time.Now().Add(timeout), false
	after := d.last
	for after != nil && after.at.After(l.at) {
		after = after.prev
	}
	if l.prev = after; after != nil {
		l.next, after.next = after.next, l
	} else {
		l.next, d.first = d.first, l
	}
	if l.next != nil {
		l.next.prev = l
	} else {
		d.last = l
	}
	d.arm()
}

// end forgets a deadline.
func (d *deadlines) end(l *deadline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !l.over {
		d.remove(l)
	}
}

// remove takes a deadline out of the list. The caller holds mu.
func (d *deadlines) remove(l *deadline) {
	l.over = true
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		d.first = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		d.last = l.prev
	}
	l.next, l.prev = nil, nil
}

// arm sets the timer for the first deadline, unless it runs. It is not stopped when a call ends: the
// next one would set it again. The caller holds mu.
func (d *deadlines) arm() {
	if d.first == nil || d.set && !d.rings.After(d.first.at) {
		return
	}
	d.set, d.rings = true, d.first.at
	wait := time.Until(d.rings)
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.ring)
	} else {
		d.timer.Reset(wait)
	}
}

func (d *deadlines) ring() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set = false
	for now := time.Now(); d.first != nil && !d.first.at.After(now); {
		l := d.first
		d.remove(l)
		if c, ok := l.of.(*callContext); ok && c.sent.open() {
			c.overdue = true
			c.node.overdue.Add(1)
		}
		l.of.expire()
	}
	d.arm()
}

// refuse ends the calls of a node that have sent nothing, since there is no server to send it to.
func (d *deadlines) refuse(n *node, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := d.first; l != nil; {
		next := l.next
		if c, ok := l.of.(*callContext); ok && c.node == n && !c.sent.giveUpUnsent() {
			d.remove(l)
			c.refuse(err)
		}
		l = next
	}
}

// silent returns how many calls of a node have waited for a reply for longer than that, and still do.
func (d *deadlines) silent(n *node, longer time.Duration) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := int(n.overdue.Load())
	for l := d.first; l != nil; l = l.next {
		if c, ok := l.of.(*callContext); ok && c.node == n && c.sent.silence() > longer {
			calls++
		}
	}
	return calls
}

// stop stops the timer, which a later call sets again.
func (d *deadlines) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first == nil && d.timer != nil && d.timer.Stop() {
		d.set = false
	}
}

func (c *callContext) expire() {
	if c.state.CompareAndSwap(callRuns, callExpired) {
		close(c.done)
	}
}

// refuse ends the call because the server is unreachable.
func (c *callContext) refuse(err error) {
	if c.state.CompareAndSwap(callRuns, callRefusing) {
		c.refused = err
		c.state.Store(callExpired)
		close(c.done)
	}
}

// Deadline returns the earlier one of the caller's and of the call's, which is later once it has been written.
func (c *callContext) Deadline() (time.Time, bool) {
	d := &c.node.store.deadlines
	d.mu.Lock()
	own := c.deadline.at
	d.mu.Unlock()
	if t, ok := c.Context.Deadline(); ok && t.Before(own) {
		return t, true
	}
	return own, true
}

func (c *callContext) Done() <-chan struct{} { return c.done }

func (c *callContext) Err() error {
	if c.state.Load() != callExpired {
		return nil
	}
	if err := c.Context.Err(); err != nil {
		return err
	}
	return context.DeadlineExceeded
}
