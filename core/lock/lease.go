package lock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
)

// Lease is a lock that is held. Its owner calls Unlock, always.
type Lease struct {
	ctx      leaseContext
	grip     *grip
	from     *Lease // the lease that was re-entered; nil for the first
	within   int    // leases that are not released and derive from this one, itself included; grip.mu guards it
	released atomic.Bool
}

// grip is one lease on a hold, and those that have re-entered it.
type grip struct {
	hold   *hold
	first  *Lease
	number int64
	outer  *Lease // the lease on another hold that its context derives from, if there is one

	mu sync.Mutex
}

type contextKey struct{}

// FromContext returns the innermost lease that ctx derives from.
func FromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(contextKey{}).(*Lease)
	return l, ok
}

// leaseContext is the context of a lease, with the lease as a value.
type leaseContext struct {
	lease.Context
	of *Lease
}

func (c *leaseContext) Value(key any) any {
	if key == (contextKey{}) {
		return c.of
	}
	return c.Context.Value(key)
}

// newLease returns a lease on a hold, for a caller whose context has not ended.
func newLease(ctx context.Context, h *hold) *Lease {
	outer, _ := FromContext(ctx)
	all := new(struct { // one piece of memory instead of two
		lease Lease
		grip  grip
	})
	l := &all.lease
	l.ctx.of, l.grip, l.within = l, &all.grip, 1
	h.term.Begin(ctx, &l.ctx.Context, h.config.maxHold, ErrExpired)
	h.mu.Lock()
	all.grip = grip{hold: h, first: l, number: h.fence, outer: outer}
	h.asked, h.since = ctx, h.core.telemetry.Hold(ctx)
	h.mu.Unlock()
	return l
}

// enter returns another lease on the same hold, whose context ends with ctx and with the hold, or why the
// hold has ended.
func (l *Lease) enter(ctx context.Context) (*Lease, error) {
	g := l.grip
	g.mu.Lock()
	defer g.mu.Unlock()
	from := l
	for from.within == 0 { // it has been released, and an outer one may not
		if from = from.from; from == nil {
			return nil, ErrReleased
		}
	}
	entered := &Lease{grip: g, from: from}
	entered.ctx.of = entered
	if err := g.hold.term.Enter(ctx, &entered.ctx.Context, ErrExpired); err != nil {
		return nil, err
	}
	for n := entered; n != nil; n = n.from {
		n.within++
	}
	return entered, nil
}

// ended returns why the hold of the grip has ended for it; nil if it has not.
func (g *grip) ended() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first.within == 0 {
		return ErrReleased
	}
	return g.hold.term.Ended(ErrExpired)
}

// leave ends the contexts of the lease, and of those that it has re-entered, from which no other lease
// derives any more. It reports whether it was the last lease of the grip.
func (l *Lease) leave() bool {
	g := l.grip
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := l; n != nil; n = n.from {
		if n.within--; n.within == 0 {
			g.hold.term.Leave(&n.ctx.Context, ErrReleased)
		}
	}
	return g.first.within == 0
}

// Key returns the key of the lock.
func (l *Lease) Key() string { return l.grip.hold.key }

// Shared reports whether others may hold the lock as well ([Locker.RLock], [Lease.Downgrade]).
func (l *Lease) Shared() bool {
	h := l.grip.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shared
}

// Fence returns the number of this grant of the lock. That of an exclusive lease is larger than that
// of every earlier exclusive one of the same key; re-entry and renewal do not change it.
func (l *Lease) Fence() fence.Token { return fence.Token{Number: l.grip.number, Shared: l.Shared()} }

// Context ends when its holder must stop, before the store may give the lock to others, with the
// cause ([context.Cause]) [ErrExpired] when the lease could not be renewed in time or was held for
// too long ([WithMaxHold]), [ErrLost] when the store says that it is lost, [ErrReleased] once it is
// released, or with the context that the lock was asked for with: that one's end does not release
// the lock. The context of a lease that was re-entered ends so too, whatever the context is that it was
// re-entered with.
//
// The end is reckoned by the clock of the process alone, from before the request was sent, and Err
// looks at the clock itself. A process that does not run cannot look: see the package's
// documentation.
func (l *Lease) Context() context.Context { return &l.ctx }

// ValidUntil is when the lease ends if it is not renewed, by the clock of the process. After it,
// others may have the lock.
func (l *Lease) ValidUntil() time.Time { return l.ctx.ValidUntil() }

// Verify asks the store whether the lock is still held, in one round trip. It returns nil if it is,
// [ErrLost] if it is not, the cause of the end of the lease's context if that has ended, ctx's error,
// or one that matches store.ErrUnavailable. The answer is as old as its way back: it narrows the time
// in which a paused holder does harm, and only the fence closes it.
func (l *Lease) Verify(ctx context.Context) error {
	if l.ctx.Err() != nil {
		return context.Cause(&l.ctx)
	}
	h := l.grip.hold
	held, err := h.core.store.VerifyLock(ctx, h.request())
	if err != nil {
		return err
	}
	if !held {
		h.Lost()
		return ErrLost
	}
	return nil
}

// Downgrade makes an exclusive lease a shared one, without letting another exclusive one in between:
// others may have the lock shared from then on. The fence stays, as one of a shared hold.
//
// It returns [ErrLost] if the lock is not held any more, [ErrDeadlock] if others have re-entered the
// lease and take it to be exclusive, the cause of the end of the lease's context if that has ended,
// or an error that matches store.ErrUnavailable: then the lease counts as exclusive, and may be
// shared.
func (l *Lease) Downgrade(ctx context.Context) error {
	if l.ctx.Err() != nil {
		return context.Cause(&l.ctx)
	}
	l.grip.mu.Lock()
	alone := l.grip.first.within == 1
	l.grip.mu.Unlock()
	if !alone {
		return ErrDeadlock
	}
	h := l.grip.hold
	req := h.request()
	if req.Shared {
		return nil
	}
	sent := time.Now()
	held, err := h.core.store.DowngradeLock(context.WithoutCancel(ctx), req)
	if err != nil {
		return err
	}
	if !held {
		h.Lost()
		return ErrLost
	}
	h.mu.Lock()
	h.shared = true
	h.mu.Unlock()
	h.term.Extend(lease.ValidUntil(sent, h.config.ttl))
	if !h.config.renew { // it ends later than it was to end
		h.core.keeper.Remove(h)
		h.core.keeper.Watch(h, h.term.ValidUntil())
	}
	if h.line != nil { // others of the process may wait for an exclusive one
		h.core.letGo(h.line, h)
	}
	return nil
}

// Unlock releases the lock, or, if it was re-entered, this lease's part in it: the lock is released with
// the last of them. It runs to its end even if ctx is cancelled.
//
// It returns nil if the lock was held until now; [ErrLost] if it was not, so that others may have had
// it; [ErrReleased] if this lease was released before; or an error that matches store.ErrUnavailable:
// then it is tried again in the background, and the lock is free once the lease is over at the
// latest.
func (l *Lease) Unlock(ctx context.Context) error {
	if !l.released.CompareAndSwap(false, true) {
		return ErrReleased
	}
	h := l.grip.hold
	lost := !h.term.Valid() && !errors.Is(h.term.Ended(ErrExpired), ErrReleased)
	switch {
	case l.leave():
		return h.core.leave(ctx, h)
	case lost:
		return ErrLost
	}
	return nil
}
