package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A caller who cannot leave before the store's deadline needs no goroutine that answers in its
// place, if the client gives up at the deadline: the call runs in the caller's. What such calls cost
// is a good part of a round trip, so their contexts share one timer too.

// deadlines ends the contexts of calls. They all have as long, so the first to begin is the first to
// end.
type deadlines struct {
	mu          sync.Mutex
	first, last *callContext
	timer       *time.Timer
	set         bool // the timer runs
}

// callContext is the context of a call whose caller's never ends.
type callContext struct {
	context.Context // the caller's
	sent            wire
	deadline        time.Time
	done            chan struct{}

	next, prev *callContext // deadlines.mu guards them, and over
	over       bool
}

// begin returns a context that ends after that time. Callers end it with end, always.
func (d *deadlines) begin(ctx context.Context, timeout time.Duration) *callContext {
	c := &callContext{Context: ctx, deadline: time.Now().Add(timeout), done: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.prev = d.last; c.prev != nil {
		c.prev.next = c
	} else {
		d.first = c
	}
	d.last = c
	d.arm()
	return c
}

// end forgets a context.
func (d *deadlines) end(c *callContext) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !c.over {
		d.remove(c)
	}
}

// remove takes a context out of the list. The caller holds mu.
func (d *deadlines) remove(c *callContext) {
	c.over = true
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		d.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		d.last = c.prev
	}
	c.next, c.prev = nil, nil
}

// arm sets the timer for the first context, unless it runs. It is not stopped when a call ends: the
// next one would set it again. The caller holds mu.
func (d *deadlines) arm() {
	if d.set || d.first == nil {
		return
	}
	d.set = true
	wait := time.Until(d.first.deadline)
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
	for now := time.Now(); d.first != nil && !d.first.deadline.After(now); {
		c := d.first
		d.remove(c)
		close(c.done)
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

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline, true }

func (c *callContext) Done() <-chan struct{} { return c.done }

func (c *callContext) Err() error {
	select {
	case <-c.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
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
