package script

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// The client gives up at the deadline of a context, so a call runs in its caller's goroutine. A
// second goroutine would cost as much as a round trip, since another thread has to wake up. All
// calls share one timer.

// deadlines ends calls at their deadlines. The list is ordered by deadline, which is nearly always
// the order in which calls began.
type deadlines struct {
	mu          sync.Mutex
	first, last *deadline
	timer       *time.Timer
	set         bool      // the timer runs
	ringsAt     time.Time // when it fires

	spare sync.Pool // of chan struct{}, of calls that ended in time
}

// deadline is the deadline of a call. After half of the time for the reply, counted from the end of
// what the server waits for, the node is probed, so that the reason is known when the call ends.
type deadline struct {
	end time.Time
	at  time.Time // end, or before it, when the node is probed
	of  *callContext

	next, prev *deadline // guarded by deadlines.mu, as over
	over       bool
}

// callContext is the context of a call. It ends with the caller's context, or if there is no
// connection by the first deadline. The first write sets a new deadline for the reply.
type callContext struct {
	context.Context // the caller's
	node            *Node
	sent            inFlight
	deadline        deadline
	replyIn         time.Duration
	waits           time.Duration // for how long the server may wait, for replicas, before it replies
	began           time.Time
	large           bool        // may take long
	writes          bool        // may write
	reads           atomic.Bool // it is a call that reads: see Reading
	done            chan struct{}
	state           atomic.Int32
	watching        sync.Mutex
	stopWatch       func() bool // guarded by watching; nil before the caller's context is watched
	refused         error       // why it ended before its deadline; valid once state is callExpired
	client          clientContext
	eval            evalMemory
}

// The states of a call's context.
const (
	callRuns int32 = iota
	callExpired
	callEnded    // in time: done may then be reused by another call, which closes it if it expires
	callRefusing // becomes callExpired once refused is set
)

// context returns the context of a call of a node. Callers always release it.
func (d *deadlines) context(ctx context.Context, n *Node, connectIn, replyIn time.Duration) *callContext {
	c := &callContext{Context: ctx, node: n, replyIn: replyIn}
	c.sent.call, c.client.callContext = c, c
	if c.done, _ = d.spare.Get().(chan struct{}); c.done == nil {
		c.done = make(chan struct{})
	}
	c.deadline.of = c
	c.began = time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.add(&c.deadline, c.began, connectIn, connectIn)
	return c
}

// callKey is the key of a call's context as a value in it.
type callKey struct{}

func (c *callContext) Value(key any) any {
	if key == (callKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// written starts the time for the reply.
func (c *callContext) written(at time.Time) {
	d := &c.node.owner.deadlines
	d.mu.Lock()
	defer d.mu.Unlock()
	if !c.deadline.over {
		d.remove(&c.deadline)
		d.add(&c.deadline, at, c.replyIn, c.node.replyIn())
	}
}

// release removes the deadline of a call's context, and reuses its parts.
func (d *deadlines) release(c *callContext) {
	d.end(&c.deadline)
	if c.state.CompareAndSwap(callRuns, callEnded) {
		d.spare.Put(c.done)
	}
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.stopWatch != nil {
		c.stopWatch()
	}
}

// add adds a deadline; patience is how long the client waits. The caller holds mu.
func (d *deadlines) add(l *deadline, began time.Time, timeout, patience time.Duration) {
	l.end = began.Add(timeout)
	d.insert(l, began.Add((l.of.waits+min(timeout, patience))/2))
}

// insert inserts a deadline in order: nearly always at the end, since nearly all have the same
// timeout. The caller holds mu.
func (d *deadlines) insert(l *deadline, at time.Time) {
	l.at, l.over = at, false
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

// end removes a deadline.
func (d *deadlines) end(l *deadline) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !l.over {
		d.remove(l)
	}
}

// remove removes a deadline from the list. The caller holds mu.
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

// arm sets the timer for the first deadline, unless it runs. The end of a call does not stop it,
// since the next call would set it again. The caller holds mu.
func (d *deadlines) arm() {
	if d.first == nil || d.set && !d.ringsAt.After(d.first.at) {
		return
	}
	d.set, d.ringsAt = true, d.first.at
	wait := time.Until(d.ringsAt)
	if d.timer == nil {
		d.timer = time.AfterFunc(wait, d.ring)
	} else {
		d.timer.Reset(wait)
	}
}

func (d *deadlines) ring() {
	for _, c := range d.due() {
		c.node.doubtSilence(c)
	}
}

// due ends the calls whose time is over. It returns the calls for which half of it is over, except
// large ones.
func (d *deadlines) due() (half []*callContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set = false
	for now := time.Now(); d.first != nil && !d.first.at.After(now); {
		l := d.first
		d.remove(l)
		if l.end.After(now) {
			d.insert(l, l.end)
			if c := l.of; c.replyIn <= c.node.owner.config.Timeout+c.node.owner.timeFor(largeBytes) {
				half = append(half, c)
			}
		} else {
			l.of.expire()
		}
	}
	d.arm()
	return half
}

// refuse ends the unsent calls of a node whose server is unreachable, or refuses them. Calls that
// read continue if the server refuses writes only.
func (d *deadlines) refuse(n *Node, err error) {
	writesOnly := redisfault.RefusesWrites(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	for l := d.first; l != nil; {
		next := l.next
		if c := l.of; c.node == n && (!writesOnly || !c.reads.Load()) && !c.sent.giveUpUnsent() {
			d.remove(l)
			c.refuse(err)
		}
		l = next
	}
}

// stop stops the timer if there are no deadlines; a later call sets it again.
func (d *deadlines) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.first == nil && d.timer != nil && d.timer.Stop() {
		d.set = false
	}
}

// since returns when the request was last written, or when the call began.
func (c *callContext) since() time.Time {
	if sent := c.sent.since(); !sent.IsZero() {
		return sent
	}
	return c.began
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

// Deadline returns the earlier of the caller's deadline and the call's, which moves with the first
// write.
func (c *callContext) Deadline() (time.Time, bool) {
	d := &c.node.owner.deadlines
	d.mu.Lock()
	own := c.deadline.end
	d.mu.Unlock()
	if t, ok := c.Context.Deadline(); ok && t.Before(own) {
		return t, true
	}
	return own, true
}

// Done also starts to watch the caller's context.
func (c *callContext) Done() <-chan struct{} {
	c.watching.Lock()
	defer c.watching.Unlock()
	if c.stopWatch == nil && c.state.Load() == callRuns && c.Context.Done() != nil {
		c.stopWatch = context.AfterFunc(c.Context, c.expire)
	}
	return c.done
}

// clientContext is a call's context for the Redis client. The client calls Done once before it
// takes a connection, to poll, and again if it has to wait for one. The first call does not watch
// the caller's context: that would cost more than the rest of this call.
type clientContext struct {
	*callContext
	polled atomic.Bool
}

func (c *clientContext) Done() <-chan struct{} {
	if c.polled.Swap(true) {
		return c.callContext.Done()
	}
	_ = c.Err()
	return c.done
}

// Err also reports the end of a caller's context that is not watched.
func (c *callContext) Err() error {
	if c.Context.Err() != nil {
		c.expire()
	}
	if c.state.Load() != callExpired {
		return nil
	}
	if err := c.Context.Err(); err != nil {
		return err
	}
	return context.DeadlineExceeded
}
