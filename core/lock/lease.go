package lock

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Lease is a held lock. Always call Unlock.
type Lease struct {
	lease   lease.Lease
	first   *Lease // on the same hold
	parent  *Lease // the lease that it re-entered; nil for the first
	entries int    // unreleased leases that derive from this one, itself included; guarded by first.mu
	mu      sync.Mutex
}

type contextKey struct{}

// FromContext returns the innermost lease that ctx derives from. In gin pass c.Request.Context(),
// not c: see package ginmw.
func FromContext(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(contextKey{}).(*Lease)
	return l, ok
}

// newLease returns memory for a lease, and for its hold if it is the first one.
func newLease(first bool) (*lease.Lease, *lease.Hold) {
	var (
		l *Lease
		h *lease.Hold
	)
	if first { // one allocation instead of two
		both := new(struct {
			Lease
			lease.Hold
		})
		l, h = &both.Lease, &both.Hold
	} else {
		l = new(Lease)
	}
	l.first, l.entries = l, 1
	l.lease.Init(l)
	return &l.lease, h
}

// outer returns the lease on another hold that this one's context derives from; nil if there is
// none.
func (l *Lease) outer() *Lease {
	outer, _ := l.first.lease.Parent().Value(contextKey{}).(*Lease)
	return outer
}

// reenter returns a lease on the hold of the lock that ctx already has, or an error if that hold
// has ended, since the work of ctx may have been interrupted then. Without such a hold it returns
// nil and nil.
func (l *Locker) reenter(ctx context.Context, key string, weight int) (*lease.Lease, error) {
	for held, _ := FromContext(ctx); held != nil; held = held.outer() {
		if !held.lease.Of(l.pool) || held.Key() != key {
			continue
		}
		if held.Shared() && weight != shared {
			if err := held.ended(); err != nil {
				return nil, err
			}
			return nil, ErrDeadlock
		}
		return held.enter(ctx)
	}
	return nil, nil
}

// enter returns another lease on the same hold, whose context ends with ctx and with the hold, or
// the reason why the hold has ended.
func (l *Lease) enter(ctx context.Context) (*lease.Lease, error) {
	l.first.mu.Lock()
	defer l.first.mu.Unlock()
	from := l
	for from.entries == 0 { // it was released; an outer lease may not be
		if from = from.parent; from == nil {
			return nil, ErrReleased
		}
	}
	entered := &Lease{first: l.first, parent: from}
	entered.lease.Init(entered)
	if err := from.lease.Enter(ctx, &entered.lease); err != nil {
		return nil, err
	}
	for n := entered; n != nil; n = n.parent {
		n.entries++
	}
	return &entered.lease, nil
}

// ended returns why the lease has ended; nil if it has not.
func (l *Lease) ended() error {
	l.first.mu.Lock()
	defer l.first.mu.Unlock()
	if l.first.entries == 0 {
		return ErrReleased
	}
	return l.lease.Ended()
}

// exit removes the lease, and ends the contexts of this lease and of the leases that it re-entered,
// except those from which other leases derive. It reports whether it was the last lease on the
// hold.
func (l *Lease) exit() bool {
	l.first.mu.Lock()
	defer l.first.mu.Unlock()
	for n := l; n != nil; n = n.parent {
		if n.entries--; n.entries == 0 {
			n.lease.Leave()
		}
	}
	return l.first.entries == 0
}

// Key returns the key of the lock.
func (l *Lease) Key() string { return l.lease.Key() }

// Shared reports whether others may hold the lock as well ([Locker.RLock], [Lease.Downgrade]).
func (l *Lease) Shared() bool { return l.lease.Weight() == shared }

// Fence returns the number of this grant. An exclusive lease has a larger one than all earlier
// exclusive leases of the same key; re-entry and renewal do not change it.
func (l *Lease) Fence() fence.Token {
	return fence.Token{Number: l.lease.Fence(), Shared: l.Shared()}
}

// Context ends when its holder must stop, before the store may grant the lock to others. Its cause
// ([context.Cause]) is
//
//   - [ErrExpired] if the lease was not renewed in time or was held for too long ([WithMaxHold]),
//   - [ErrLost] if the store reports its loss,
//   - [ErrClosed] if the Locker or its store is closing and waits for Unlock,
//   - [ErrReleased] once it is released, or
//   - the cause of the request's context, whose end does not release the lock.
//
// The context of a re-entrant lease ends in the same cases, whatever its own parent is.
//
// The deadline is computed from the process's own clock at the time before the request was sent,
// and Err reads the clock itself. A paused process cannot: see the package's documentation.
func (l *Lease) Context() context.Context { return &l.lease }

// ValidUntil returns when the lease ends if it is not renewed, by the clock of the process. After
// it, others may hold the lock.
func (l *Lease) ValidUntil() time.Time { return l.lease.ValidUntil() }

// Verify checks in the store that the lock is still held, in one round trip. It returns nil if it
// is, [ErrLost] if it is not, the cause of the lease's context if that has ended, ctx's error, or
// one that matches store.ErrUnavailable. The reply is as old as its way back: Verify shortens the
// time in which a paused holder can do harm, and only the fence removes it.
func (l *Lease) Verify(ctx context.Context) error { return l.lease.Verify(ctx) }

// VerifyBy is Verify by a step of the caller's, such as a statement in a transaction: pgstore.Bind
// calls it. step gets the locker's store and the hold, and reports whether that is held. If step
// returns an error, VerifyBy returns it, and the lease stays valid.
func (l *Lease) VerifyBy(ctx context.Context, step func(ctx context.Context, st store.Leases, ref store.LeaseRef) (held bool, err error)) error {
	return l.lease.VerifyBy(ctx, step)
}

// Downgrade turns an exclusive lease into a shared one, without another exclusive one in between:
// others may then hold the lock shared. The fence keeps its number, and is marked as shared.
//
// It returns [ErrLost] if the lock is no longer held, [ErrDeadlock] if the lease was re-entered and
// not all of those leases are released, the cause of the lease's context if that has ended, or an
// error that matches store.ErrUnavailable: then the lease counts as exclusive, and may be shared.
func (l *Lease) Downgrade(ctx context.Context) error {
	if l.lease.Err() != nil {
		return context.Cause(&l.lease)
	}
	l.first.mu.Lock()
	alone := l.first.entries == 1
	l.first.mu.Unlock()
	switch {
	case !alone:
		return ErrDeadlock
	case l.Shared():
		return nil
	}
	return l.lease.Downgrade(ctx, shared)
}

// Unlock releases the lease. If the lock was re-entered, it is released with the last of its
// leases. Unlock runs to its end even if ctx is cancelled.
//
// It returns
//
//   - nil if the lock was held until now;
//   - [ErrLost] if it was not, so that others may have held it;
//   - [ErrExpired] if the lease has a lock-delay ([WithLockDelay]) and ran out before, whatever the
//     store still kept;
//   - [ErrReleased] if this lease was released before; or
//   - an error that matches store.ErrUnavailable: then the release is retried in the background,
//     and the lock is free when the lease expires at the latest.
func (l *Lease) Unlock(ctx context.Context) error {
	if !l.lease.Close() {
		return ErrReleased
	}
	lost := l.lease.Lost()
	switch {
	case l.exit():
		return l.lease.End(ctx)
	case lost:
		return ErrLost
	}
	return nil
}
