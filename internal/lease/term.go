package lease

import (
	"context"
	"sync"
	"time"
)

// Term is for how long a hold is valid, as far as this process can tell, and the context of whoever
// has it. Renewals extend it; a context may end before its term does, and the next one go on with it.
//
// What was over for a moment stays over: whoever asked at that moment was told so.
type Term struct {
	mu         sync.Mutex
	validUntil time.Time
	limit      time.Time // of the present context; zero if there is none
	over       error     // why the term has ended, whatever the clock says
	ctx        *Context
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
	c.begin(parent, t.capped(), expired)
	t.ctx = c
	if t.over != nil {
		c.End(t.over)
	}
}

// Detach leaves the present context as it is, whatever becomes of the term.
func (t *Term) Detach() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ctx, t.limit = nil, time.Time{}
}

// capped is when the present context is to end. The caller holds mu.
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
	if t.ctx != nil {
		t.ctx.Extend(t.capped())
	}
}

// End ends the term, and the present context with this cause, unless they have ended already.
func (t *Term) End(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over == nil {
		t.over = cause
	}
	if t.ctx != nil {
		t.ctx.End(cause)
	}
}

// Valid reports whether nobody else can have what is held.
func (t *Term) Valid() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over == nil && time.Now().Before(t.validUntil)
}

// Due reports whether the hold is still to be renewed: not when its context had its time.
func (t *Term) Due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.over == nil && time.Now().Before(t.capped())
}

// Remaining is for how long the term goes on, unless it is extended, or ended by hand.
func (t *Term) Remaining() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(time.Until(t.validUntil), 0)
}
