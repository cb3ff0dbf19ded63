// Package lease has the context that ends when a hold does.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Context ends at a deadline that renewals move on, or when it is ended by hand, whichever is
// first, or with its parent. Its cause ([context.Cause]) says which it was.
//
// Err compares the clock itself: after the deadline it is never nil, whether or not a timer has
// had its turn. The timer is there for those who cannot ask: it is started for the first of them.
// The deadline is monotonic.
type Context struct {
	context.Context // the cancellable one that does the ending

	cancel  context.CancelCauseFunc
	expired error

	next, prev *Context // of the same Term, whose mu guards them

	watched  atomic.Bool // there is a timer
	mu       sync.Mutex
	deadline time.Time
	timer    *time.Timer
}

// NewContext returns a context that ends with the cause expired at the deadline.
// Callers end it with End, always, so that the timer goes.
func NewContext(parent context.Context, deadline time.Time, expired error) *Context {
	c := new(Context)
	c.begin(parent, deadline, expired)
	return c
}

func (c *Context) begin(parent context.Context, deadline time.Time, expired error) {
	c.Context, c.cancel = context.WithCancelCause(parent)
	c.expired, c.deadline = expired, deadline
}

// Done is closed when the context ends.
func (c *Context) Done() <-chan struct{} {
	c.watch()
	return c.Context.Done()
}

// Value has the timer started too: it is how [context.Cause] asks.
func (c *Context) Value(key any) any {
	c.watch()
	return c.Context.Value(key)
}

// watch starts the timer.
func (c *Context) watch() {
	if c.watched.Load() {
		return
	}
	c.mu.Lock()
	left := time.Until(c.deadline)
	if !c.watched.Swap(true) && left > 0 && c.Context.Err() == nil {
		c.timer = time.AfterFunc(left, c.expire)
	}
	c.mu.Unlock()
	if left <= 0 {
		c.cancel(c.expired)
	}
}

// Err is nil while the hold is valid.
func (c *Context) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if !time.Now().Before(c.ValidUntil()) {
		c.cancel(c.expired)
	}
	return c.Context.Err()
}

// Deadline is the parent's: the end of a lease moves, and what was derived from this context must
// not freeze it.
func (c *Context) Deadline() (time.Time, bool) { return c.Context.Deadline() }

// ValidUntil returns the deadline as it stands.
func (c *Context) ValidUntil() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline
}

// Extend moves the deadline on. It never moves back, and a context that has ended stays ended.
func (c *Context) Extend(deadline time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Context.Err() != nil || !deadline.After(c.deadline) || !time.Now().Before(c.deadline) {
		return
	}
	c.deadline = deadline
	if c.timer != nil {
		c.timer.Reset(time.Until(deadline))
	}
}

// End ends the context with this cause, unless it has ended already.
func (c *Context) End(cause error) {
	c.cancel(cause)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}

func (c *Context) expire() {
	c.mu.Lock()
	left := time.Until(c.deadline)
	if left > 0 && c.Context.Err() == nil { // renewed while the timer fired
		c.timer.Reset(left)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.cancel(c.expired)
}

// ValidUntil is until when a hold that was asked for at a time can be relied on: the clocks of two
// machines may differ in speed by the margin.
func ValidUntil(sent time.Time, ttl time.Duration) time.Time {
	return sent.Add(ttl - ttl/100 - 2*time.Millisecond)
}

// Ended is the error of a context that has ended: it matches both its Err and its cause.
func Ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
