// Package lease keeps leases alive: it renews them in batches, and ends their contexts when they end.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Context ends at a deadline that renewals extend, when End is called, or with its parent,
// whichever is first. Its cause ([context.Cause]) says which it was.
//
// Err reads the clock itself: after the deadline it is never nil, whether or not a timer has fired.
// The timer closes Done, and is started by its first use. The deadline is monotonic.
type Context struct {
	context.Context // the cancellable context inside

	cancel  context.CancelCauseFunc
	expired error

	next, prev *Context // of the same Term, guarded by its mu

	watched  atomic.Bool // the timer was started
	mu       sync.Mutex
	deadline time.Time
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
	c.Context, c.cancel = context.WithCancelCause(parent)
	c.expired, c.deadline = expired, deadline
}

// Done is closed when the context ends.
func (c *Context) Done() <-chan struct{} {
	c.watch()
	return c.Context.Done()
}

// Value starts the timer too, since [context.Cause] calls it.
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

// Deadline returns the parent's: the deadline of a lease moves, and derived contexts must not copy
// it.
func (c *Context) Deadline() (time.Time, bool) { return c.Context.Deadline() }

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
	if c.Context.Err() != nil || !deadline.After(c.deadline) || !time.Now().Before(c.deadline) {
		return
	}
	c.deadline = deadline
	if c.timer != nil {
		c.timer.Reset(time.Until(deadline))
	}
}

// End ends the context with this cause, unless it has already ended.
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

// ValidUntil returns the local deadline of a hold that was requested at a time. The margin allows
// for clocks of different speed.
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
