package lease

import (
	"cmp"
	"context"
	"sync"
	"time"
)

// Term is the time for which a hold is valid by the local clock, with the contexts of its holders.
// Renewals extend it. A context may end before its term does; after [Term.Detach] another one can
// begin and use the rest of the term.
//
// A term that has expired stays expired, even if a renewal follows: a caller may have seen its end.
type Term struct {
	mu         sync.Mutex
	validUntil time.Time
	limit      time.Time // of the current contexts; zero if there is none
	over       error     // the cause of the end of the term; nil before
	stopped    error     // the cause of an earlier end of its contexts; nil before
	lapsing    bool      // it is not extended any more
	contexts   *Context  // the current ones, the last to begin first
}

// Init starts a term that is valid until then. It is called once, before the others.
func (t *Term) Init(validUntil time.Time) { t.validUntil = validUntil }

// Begin initialises a zero Context, which ends with the cause expired at the end of the term, or
// after longest if that is sooner and not zero; or when End is called.
func (t *Term) Begin(parent context.Context, c *Context, longest time.Duration, expired error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.limit = time.Time{}
	if longest > 0 {
		t.limit = time.Now().Add(longest)
	}
	t.begin(parent, c, expired)
	if cause := cmp.Or(t.over, t.stopped); cause != nil {
		c.End(cause)
	}
}

// Enter initialises a zero Context, which ends as the current ones do, independent of their
// parents. If the term, or the time of its contexts, is over, it returns the cause instead:
// expired, or that of [Term.End] or [Term.Stop].
func (t *Term) Enter(parent context.Context, c *Context, expired error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := cmp.Or(t.ended(expired), t.stopped); err != nil {
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

// Leave ends a context with this cause, unless it has already ended, and removes it from the term.
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

// Detach removes the current contexts from the term, which no longer affects them.
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

// Ended returns the cause if the term, or the time of its contexts, is over: expired if it is by
// the clock, or the cause of [Term.End]. It returns nil if it is not over.
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

// capped returns the deadline of the current contexts. The caller holds mu.
func (t *Term) capped() time.Time {
	if !t.limit.IsZero() && t.limit.Before(t.validUntil) {
		return t.limit
	}
	return t.validUntil
}

// Extend extends the term. It never moves its end back.
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

// End ends the term, and the current contexts with this cause, unless they have already ended.
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

// Stop ends the present contexts and all later ones with this cause. The term continues, since
// holders may need time to stop.
func (t *Term) Stop(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = cause
	for c := t.contexts; c != nil; c = c.next {
		c.End(cause)
	}
}

// Lapse lets the term run out: from now on it is not due.
func (t *Term) Lapse() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lapsing = true
}

// Valid reports whether the hold excludes others: the term has not ended.
func (t *Term) Valid() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over == nil && time.Now().Before(t.validUntil)
}

// Due reports whether to renew the hold: the term, and the time of its contexts, is not over, and
// it is not to lapse.
func (t *Term) Due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.lapsing && t.ended(context.DeadlineExceeded) == nil
}

// ValidUntil returns when the term ends, unless it is extended or ended before.
func (t *Term) ValidUntil() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.validUntil
}

// Remaining returns the time until the term ends, unless it is extended or ended before.
func (t *Term) Remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(time.Until(t.validUntil), 0)
}
