package lock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock/fence"
	"github.com/lockkeeper/lockkeeper/internal/lease"
)

// Lease is a lock that is held. Whoever got it calls Unlock, always.
type Lease struct {
	grip     *grip
	ctx      context.Context
	released atomic.Bool
}

// grip is one lease on a hold, shared by those who have re-entered it.
type grip struct {
	hold   *hold
	lease  *lease.Context
	number int64
	outer  *Lease // the lease that its context derives from, if there is one

	mu    sync.Mutex
	count int // of leases that are not released
}

type contextKey struct{}

// FromContext returns the innermost lease that ctx derives from.
func FromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(contextKey{}).(*Lease)
	return l, ok
}

// gripContext is the context of a grip, with its first lease as a value.
type gripContext struct {
	lease.Context
	first *Lease
}

func (c *gripContext) Value(key any) any {
	if key == (contextKey{}) {
		return c.first
	}
	return c.Context.Value(key)
}

// newLease returns a lease on a hold, for a caller whose context has not ended.
func newLease(ctx context.Context, h *hold) *Lease {
	outer, _ := FromContext(ctx)
	all := new(struct { // one piece of memory instead of three
		lease   Lease
		grip    grip
		context gripContext
	})
	inner := &all.context.Context
	h.term.Begin(ctx, inner, h.config.maxHold, ErrExpired)
	h.mu.Lock()
	all.grip = grip{hold: h, lease: inner, number: h.fence, outer: outer, count: 1}
	h.asked, h.since = ctx, h.core.telemetry.Hold(ctx)
	h.mu.Unlock()
	all.context.first = &all.lease
	all.lease.grip, all.lease.ctx = &all.grip, &all.context
	return &all.lease
}

// enter returns another lease on the same hold, or nil if it has been released.
func (g *grip) enter(ctx context.Context) *Lease {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.count == 0 {
		return nil
	}
	g.count++
	return &Lease{grip: g, ctx: ctx}
}

// live reports whether somebody has not released it.
func (g *grip) live() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count > 0
}

// leave reports whether the last lease on the hold has gone.
func (g *grip) leave() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count--
	return g.count == 0
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
// the lock.
//
// The end is reckoned by the clock of the process alone, from before the request was sent, and Err
// looks at the clock itself. A process that does not run cannot look: see the package's
// documentation.
func (l *Lease) Context() context.Context { return l.ctx }

// ValidUntil is when the lease ends if it is not renewed, by the clock of the process. After it,
// others may have the lock.
func (l *Lease) ValidUntil() time.Time { return l.grip.lease.ValidUntil() }

// Verify asks the store whether the lock is still held, in one round trip. It returns nil if it is,
// [ErrLost] if it is not, the cause of the end of the lease's context if that has ended, ctx's error,
// or one that matches core.ErrUnavailable. The answer is as old as its way back: it narrows the time
// in which a paused holder does harm, and only the fence closes it.
func (l *Lease) Verify(ctx context.Context) error {
	if l.grip.lease.Err() != nil {
		return context.Cause(l.grip.lease)
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
// or an error that matches core.ErrUnavailable: then the lease counts as exclusive, and may be
// shared.
func (l *Lease) Downgrade(ctx context.Context) error {
	if l.grip.lease.Err() != nil {
		return context.Cause(l.grip.lease)
	}
	l.grip.mu.Lock()
	alone := l.grip.count == 1
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
	if h.line != nil { // others of the process may wait for an exclusive one
		h.core.letGo(h.line, h)
	}
	return nil
}

// Unlock releases the lock, or, if it was re-entered, this lease's part in it. It runs to its end
// even if ctx is cancelled.
//
// It returns nil if the lock was held until now; [ErrLost] if it was not, so that others may have had
// it; [ErrReleased] if this lease was released before; or an error that matches core.ErrUnavailable:
// then it is tried again in the background, and the lock is free once the lease is over at the
// latest.
func (l *Lease) Unlock(ctx context.Context) error {
	if !l.released.CompareAndSwap(false, true) {
		return ErrReleased
	}
	if !l.grip.leave() {
		return nil
	}
	l.grip.lease.End(ErrReleased)
	return l.grip.hold.core.leave(ctx, l.grip.hold)
}
