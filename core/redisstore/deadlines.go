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

// deadlines tells those who wait that their time is over. They all have as long, so the first to begin is
// the first to end.
type deadlines struct {
	mu          sync.Mutex
	first, last *deadline
	timer       *time.Timer
	set         bool // the timer runs
}

// deadline is that of who waits.
type deadline struct {
	at time.Time
	of interface{ expire() } // which is called once, at the deadline

	next, prev *deadline // deadlines.mu guards them, and over
	over       bool
}

// callContext is the context of a call whose caller's never ends.
type callContext struct {
	context.Context // the caller's
	sent            wire
	deadline        deadline
	done            chan struct{}
}

// context returns a context that ends after that time. Callers end its deadline, always.
func (d *deadlines) context(ctx context.Context, timeout time.Duration) *callContext {
	c := &callContext{Context: ctx, done: make(chan struct{})}
	c.deadline.of = c
	d.begin(&c.deadline, timeout)
	return c
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

func (c *callContext) expire() { close(c.done) }

func (c *callContext) Deadline() (time.Time, bool) { return c.deadline.at, true }

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
