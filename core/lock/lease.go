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

// Lease is a held lock. Always call Unlock.
type Lease struct {
	ctx      leaseContext
	state    *sharedLease
	parent   *Lease // the lease that it re-entered; nil for the first
	entries  int    // unreleased leases that derive from this one, itself included; guarded by state.mu
	released atomic.Bool
}

// sharedLease is the state that a lease shares with those that re-enter it.
type sharedLease struct {
	hold   *hold
	first  *Lease
	number int64
	outer  *Lease // the lease on another hold that its context derives from; may be nil

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
	all := new(struct { // one allocation instead of two
		lease Lease
		grip  sharedLease
	})
	l := &all.lease
	l.ctx.of, l.state, l.entries = l, &all.grip, 1
	h.term.Begin(ctx, &l.ctx.Context, h.config.maxHold, ErrExpired)
	h.mu.Lock()
	all.grip = sharedLease{hold: h, first: l, number: h.fence, outer: outer}
	h.requestCtx, h.heldSince = ctx, h.core.telemetry.Hold(ctx)
	h.mu.Unlock()
	return l
}

// enter returns another lease on the same hold, whose context ends with ctx and with the hold, or
// the reason why the hold has ended.
func (l *Lease) enter(ctx context.Context) (*Lease, error) {
	g := l.state
	g.mu.Lock()
	defer g.mu.Unlock()
	from := l
	for from.entries == 0 { // it was released; an outer lease may not be
		if from = from.parent; from == nil {
			return nil, ErrReleased
		}
	}
	entered := &Lease{state: g, parent: from}
	entered.ctx.of = entered
	if err := g.hold.term.Enter(ctx, &entered.ctx.Context, ErrExpired); err != nil {
		return nil, err
	}
	for n := entered; n != nil; n = n.parent {
		n.entries++
	}
	return entered, nil
}

// ended returns why the lease has ended; nil if it has not.
func (g *sharedLease) ended() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first.entries == 0 {
		return ErrReleased
	}
	return g.hold.term.Ended(ErrExpired)
}

// exit removes the lease, and ends its context and those of the leases that it re-entered, unless
// other leases derive from them. It reports whether it was the last lease on the hold.
func (l *Lease) exit() bool {
	g := l.state
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := l; n != nil; n = n.parent {
		if n.entries--; n.entries == 0 {
			g.hold.term.Leave(&n.ctx.Context, ErrReleased)
		}
	}
	return g.first.entries == 0
}

// Key returns the key of the lock.
func (l *Lease) Key() string { return l.state.hold.key }

// Shared reports whether others may hold the lock as well ([Locker.RLock], [Lease.Downgrade]).
func (l *Lease) Shared() bool {
	h := l.state.hold
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.shared
}

// Fence returns the number of this grant. That of an exclusive lease is larger than those of all
// earlier exclusive leases of the same key; re-entry and renewal do not change it.
func (l *Lease) Fence() fence.Token { return fence.Token{Number: l.state.number, Shared: l.Shared()} }

// Context ends when its holder must stop, before the store may grant the lock to others. Its cause
// ([context.Cause]) is [ErrExpired] if the lease was not renewed in time or was held for too long
// ([WithMaxHold]), [ErrLost] if the store reports its loss, [ErrReleased] once it is released, or
// that of the context of the request, whose end does not release the lock. The context of a
// re-entrant lease ends in the same cases, whatever its own parent is.
//
// The deadline is computed from the process's own clock at the time before the request was sent,
// and Err reads the clock itself. A paused process cannot: see the package's documentation.
func (l *Lease) Context() context.Context { return &l.ctx }

// ValidUntil returns when the lease ends if it is not renewed, by the clock of the process. After
// it, others may hold the lock.
func (l *Lease) ValidUntil() time.Time { return l.ctx.ValidUntil() }

// Verify checks in the store that the lock is still held, in one round trip. It returns nil if it
// is, [ErrLost] if it is not, the cause of the lease's context if that has ended, ctx's error, or
// one that matches store.ErrUnavailable. The reply is as old as its way back: this shortens the
// time in which a paused holder can do harm, and only the fence removes it.
func (l *Lease) Verify(ctx context.Context) error {
	if l.ctx.Err() != nil {
		return context.Cause(&l.ctx)
	}
	h := l.state.hold
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

// Downgrade turns an exclusive lease into a shared one, without another exclusive one in between:
// others may then hold the lock shared. The fence keeps its number, and is marked as shared.
//
// It returns [ErrLost] if the lock is no longer held, [ErrDeadlock] if the lease was re-entered and
// not all of those leases are released, the cause of the lease's context if that has ended, or an
// error that matches store.ErrUnavailable: then the lease counts as exclusive, and may be shared.
func (l *Lease) Downgrade(ctx context.Context) error {
	if l.ctx.Err() != nil {
		return context.Cause(&l.ctx)
	}
	l.state.mu.Lock()
	alone := l.state.first.entries == 1
	l.state.mu.Unlock()
	if !alone {
		return ErrDeadlock
	}
	h := l.state.hold
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
	if !h.config.renew { // its end has moved
		h.core.keeper.Remove(h)
		h.core.keeper.Watch(h, h.term.ValidUntil())
	}
	if h.queue != nil { // others of the process may wait for an exclusive lease
		h.core.holdEnded(h.queue, h)
	}
	return nil
}

// Unlock releases the lease. If the lock was re-entered, it is released with the last of its
// leases. Unlock runs to its end even if ctx is cancelled.
//
// It returns nil if the lock was held until now; [ErrLost] if it was not, so that others may have
// held it; [ErrReleased] if this lease was released before; or an error that matches
// store.ErrUnavailable: then the release is retried in the background, and the lock is free when
// the lease expires at the latest.
func (l *Lease) Unlock(ctx context.Context) error {
	if !l.released.CompareAndSwap(false, true) {
		return ErrReleased
	}
	h := l.state.hold
	lost := !h.term.Valid() && !errors.Is(h.term.Ended(ErrExpired), ErrReleased)
	switch {
	case l.exit():
		return h.core.endLease(ctx, h)
	case lost:
		return ErrLost
	}
	return nil
}
