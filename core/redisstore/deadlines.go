package redisstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// If the client gives up at the deadline of a context, nobody has to answer in its place: the call runs in
// its caller's goroutine. To have another one wait for the reply costs as much as a round trip, since a
// second thread has to wake up. The contexts of calls share one timer too.

// deadlines tells those who wait that their time is over. They all have as long, so the first to begin is
// the first to end.
type deadlines struct {
	mu          sync.Mutex
	first, last *deadline
	timer       *time.Timer
	set         bool // the timer runs

	spare sync.Pool // of chan struct{}, of calls that ended in time
}

// deadline is that of who waits.
type deadline struct {
	at time.Time
	of interface{ expire() } // which is called once, at the deadline

	next, prev *deadline // deadlines.mu guards them, and over
	over       bool
}

// callContext is the context of a call in its caller's goroutine. It ends with the caller's context, and at
// the store's deadline.
type callContext struct {
	context.Context // the caller's
	sent            wire
	deadline        deadline
	earliest        time.Time // of both deadlines
	done            chan struct{}
	state           atomic.Int32
	unwatch         func() bool
}

// The states of a call's context.
const (
	callRuns int32 = iota
	callExpired
	callEnded // in time: done may be another call's from then on, which closes it if it expires
)

// context returns a context that ends with another, or after that time. Callers give it back, always.
func (d *deadlines) context(ctx context.Context, timeout time.Duration) *callContext {
	c := &callContext{Context: ctx}
	if c.done, _ = d.spare.Get().(chan struct{}); c.done == nil {
		c.done = make(chan struct{})
	}
	c.deadline.of = c
	d.begin(&c.deadline, timeout)
	c.earliest = c.deadline.at
	if t, ok := ctx.Deadline(); ok && t.Before(c.earliest) {
		c.earliest = t
	}
	if ctx.Done() != nil {
		c.unwatch = context.AfterFunc(ctx, c.expire)
	}
	return c
}

// giveBack ends what a context keeps others busy with.
func (d *deadlines) giveBack(c *callContext) {
	d.end(&c.deadline)
	if c.unwatch != nil {
		c.unwatch()
	}
	if c.state.CompareAndSwap(callRuns, callEnded) {
		d.spare.Put(c.done)
	}
}

// begin has a deadline come after that time, unless it is ended before.
func (d *deadlines) begin(l *deadline, timeout time.Duration) {
	l.at, l.over = time.Now().Add(timeout), false
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.prev = d.last; l.prev != nil {
		l.prev.next = l
	} else {
		d.first = l
	}
	d.last = l
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
	if d.set || d.first == nil {
		return
	}
	d.set = true
	wait := time.Until(d.first.at)
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
		l.of.expire()
	}
	d.arm()
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

func (c *callContext) Deadline() (time.Time, bool) { return c.earliest, true }

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

// keepsDeadlines reports whether a client never waits beyond the deadline of a context.
func keepsDeadlines(client redis.UniversalClient) bool {
	switch client := client.(type) {
	case *redis.Client:
		return client.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return client.Options().ContextTimeoutEnabled
	case *redis.Ring:
		return client.Options().ContextTimeoutEnabled
	}
	return false // nothing is known of it
}
