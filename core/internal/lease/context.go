// Package lease keeps leases alive: it renews them in batches, and ends their contexts when they
// end.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Context ends at a deadline that renewals extend, when End is called, or with its parent,
// whichever is first. Its cause ([context.Cause]) says which it was.
//
// Err reads the clock itself: after the deadline it is never nil, whether or not a timer has fired.
// The first use of Done or Value starts the timer, and a context that ends with the parent: many
// leases are released without it. The deadline is monotonic.
type Context struct {
	parent  context.Context
	expired error

	next, prev *Context // of the same Term, guarded by its mu

	mu       sync.Mutex
	deadline time.Time
	over     error           // why it ended before it was started
	started  context.Context // nil before the first use
	cancel   context.CancelCauseFunc
	timer    *time.Timer
}

// NewContext returns a context that ends with the cause expired at the deadline. Callers always
// call End, which stops the timer.
func NewContext(parent context.Context, deadline time.Time, expired error) *Context {
	c := new(Context)
	c.begin(parent, deadline, expired)
	return c
}

func (c *Context) begin(parent context.Context, deadline time.Time, expired error) {
	c.parent, c.expired, c.deadline = parent, expired, deadline
}

// Done is closed when the context ends.
func (c *Context) Done() <-chan struct{} { return c.start().Done() }

// Value starts the context, since [context.Cause] calls it.
func (c *Context) Value(key any) any { return c.start().Value(key) }

// start returns the context that ends with the parent, and has the cause.
func (c *Context) start() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started == nil {
		parent := c.parent
		if c.over != nil { // before the parent
			parent = context.WithoutCancel(parent)
		}
		c.started, c.cancel = context.WithCancelCause(parent)
		if left := time.Until(c.deadline); c.over != nil {
			c.cancel(c.over)
		} else if left <= 0 {
			c.cancel(c.expired)
		} else if c.started.Err() == nil {
			c.timer = time.AfterFunc(left, c.expire)
		}
	}
	return c.started
}

// Err is nil while the hold is valid.
func (c *Context) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.err(); err != nil || time.Now().Before(c.deadline) {
		return err
	}
	c.end(c.expired)
	return c.err()
}

// err is Err without the deadline. The caller holds mu.
func (c *Context) err() error {
	switch {
	case c.started != nil:
		return c.started.Err()
	case c.over != nil:
		return context.Canceled
	}
	return c.parent.Err()
}

// Deadline returns the parent's: the deadline of a lease moves, and derived contexts must not copy
// it.
func (c *Context) Deadline() (time.Time, bool) { return c.parent.Deadline() }

// ValidUntil returns the current deadline.
func (c *Context) ValidUntil() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline
}

// Extend extends the deadline. It never moves it back, and does not revive a context that has
// ended.
func (c *Context) Extend(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err() != nil || !deadline.After(c.deadline) || !time.Now().Before(c.deadline) {
		return
	}
	c.deadline = deadline
	if c.timer != nil {
		c.timer.Reset(time.Until(deadline))
	}
}

// End ends the context with this cause, unless it has already ended.
func (c *Context) End(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end(cause)
}

// end is End. The caller holds mu.
func (c *Context) end(cause error) {
	switch {
	case c.started != nil:
		c.cancel(cause)
	case c.err() == nil:
		c.over = cause
	}
	if c.timer != nil {
		c.timer.Stop()
	}
}

// expire is called by the timer.
func (c *Context) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if left := time.Until(c.deadline); left > 0 && c.err() == nil { // renewed while the timer fired
		c.timer.Reset(left)
		return
	}
	c.end(c.expired)
}

// ValidUntil returns the local deadline of a hold that was requested at sent. The margin allows for
// clocks of different speed.
func ValidUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// Ended returns the error of a context that has ended, which matches both its Err and its cause.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
