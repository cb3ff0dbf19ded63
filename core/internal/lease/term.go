package lease

import (
	"context"
	"sync"
	"time"
)

// Term is for how long a hold is valid, as far as this process can tell, and the contexts of those who
// have it. Renewals extend it. A context may end before its term does; after [Term.Detach] another one
// can begin and use the rest of the term.
//
// A term that was over for a moment stays over: a caller may have been told so at that moment.
type Term struct {
	mu         sync.Mutex
	validUntil time.Time
	limit      time.Time // of the present contexts; zero if there is none
	over       error     // why the term has ended, whatever the clock says
	contexts   *Context  // the present ones, the last to begin first
}

// Init starts a term that is valid until then. It is called once, before the others.
func (t *Term) Init(validUntil time.Time) { t.validUntil = validUntil }

// Begin makes a zero Context one that ends with the term, or after longest if that is sooner and not zero,
// with the cause expired; or when the term is ended by hand.
func (t *Term) Begin(parent context.Context, c *Context, longest time.Duration, expired error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = time.Time{}
	if longest > 0 {
		t.limit = time.Now().Add(longest)
	}
	t.begin(parent, c, expired)
	if t.over != nil {
		c.End(t.over)
	}
}

// Enter makes a zero Context one more that ends as the present one does, whatever the parents of both
// are. If the term, or the time of its contexts, is over, it returns why instead: expired, or the cause
// that [Term.End] was called with.
func (t *Term) Enter(parent context.Context, c *Context, expired error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ended(expired); err != nil {
		return err
	}
	t.begin(parent, c, expired)
	return nil
}

// begin is Begin without a limit of its own. The caller holds mu.
func (t *Term) begin(parent context.Context, c *Context, expired error) {
	c.begin(parent, t.capped(), expired)
	if c.next = t.contexts; c.next != nil {
		c.next.prev = c
	}
	t.contexts = c
}

// Leave ends a context with this cause, unless it has ended already, and forgets it.
func (t *Term) Leave(c *Context, cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.End(cause)
	switch {
	case c.prev != nil:
		c.prev.next = c.next
	case t.contexts == c:
		t.contexts = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	c.next, c.prev = nil, nil
}

// Detach leaves the present contexts as they are, whatever becomes of the term.
func (t *Term) Detach() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := t.contexts; c != nil; {
		next := c.next
		c.next, c.prev = nil, nil
		c = next
	}
	t.contexts, t.limit = nil, time.Time{}
}

// Ended returns why the term, or the time of its contexts, is over: expired if it is by the clock, or the
// cause that [Term.End] was called with. It returns nil if it is not over.
func (t *Term) Ended(expired error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended(expired)
}

// ended is Ended. The caller holds mu.
func (t *Term) ended(expired error) error {
	if t.over == nil && !time.Now().Before(t.capped()) {
		return expired
	}
	return t.over
}

// capped is when the present contexts are to end. The caller holds mu.
func (t *Term) capped() time.Time {
	if !t.limit.IsZero() && t.limit.Before(t.validUntil) {
		return t.limit
	}
	return t.validUntil
}

// Extend moves the end of the term on. It never moves back.
func (t *Term) Extend(until time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over != nil || !time.Now().Before(t.validUntil) || !until.After(t.validUntil) {
		return
	}
	t.validUntil = until
	for c := t.contexts; c != nil; c = c.next {
		c.Extend(t.capped())
	}
}

// End ends the term, and the present contexts with this cause, unless they have ended already.
func (t *Term) End(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over == nil {
		t.over = cause
	}
	for c := t.contexts; c != nil; c = c.next {
		c.End(cause)
	}
}

// Valid reports whether nobody else can have what is held.
func (t *Term) Valid() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over == nil && time.Now().Before(t.validUntil)
}

// Due reports whether the hold is still to be renewed: not when its contexts had their time.
func (t *Term) Due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ended(context.DeadlineExceeded) == nil
}

// ValidUntil is when the term ends, unless it is extended, or ended by hand.
func (t *Term) ValidUntil() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.validUntil
}

// Remaining is for how long the term goes on, unless it is extended, or ended by hand.
func (t *Term) Remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(time.Until(t.validUntil), 0)
}
