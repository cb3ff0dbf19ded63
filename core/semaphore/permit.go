package semaphore

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
)

// Permit is a held part of a capacity. Always call Release or ReleaseAsync.
type Permit struct {
	lease lease.Lease

	// Of an adaptive capacity. They are small: an allocation of a permit has no more room.
	core   *core        // nil without it
	sample atomic.Int64 // the outcome, and above its bits when the permit was granted
}

type contextKey struct{}

// FromContext returns the innermost permit that ctx derives from. In gin pass c.Request.Context(),
// not c: see package ginmw.
func FromContext(ctx context.Context) (*Permit, bool) {
	p, ok := ctx.Value(contextKey{}).(*Permit)
	return p, ok
}

// newPermit returns memory for a permit, and for its hold if it is the first one.
func (c *core) newPermit(first bool) (*lease.Lease, *lease.Hold) {
	if !first {
		p := new(Permit)
		p.init(c)
		return &p.lease, nil
	}
	both := new(struct { // one allocation instead of two
		Permit
		lease.Hold
	})
	both.init(c)
	return &both.lease, &both.Hold
}

func (p *Permit) init(c *core) {
	p.lease.Init(p)
	if c.adaptive != nil {
		p.core = c
	}
}

// Key returns the key of the semaphore.
func (p *Permit) Key() string { return p.lease.Key() }

// Weight returns the weight of the permit.
func (p *Permit) Weight() int { return p.lease.Weight() }

// Fence returns the number of this permit, as a shared token: it identifies the permit in a log or
// to a resource, and excludes no other.
func (p *Permit) Fence() fence.Token { return fence.Token{Number: p.lease.Fence(), Shared: true} }

// Context ends when its holder must stop, before the store may grant the permit's room to others.
// Its cause ([context.Cause]) is
//
//   - [ErrExpired] if the permit was not renewed in time or was held for too long ([WithMaxHold]),
//   - [ErrLost] if the store reports its loss,
//   - [ErrClosed] if the Semaphore or its store is closing and waits for the release,
//   - [ErrReleased] once it is released, or
//   - the cause of the request's context, whose end does not release the permit.
//
// The deadline is computed from the process's own clock at the time before the request was sent,
// and Err reads the clock itself. A paused process cannot: see the package's documentation.
func (p *Permit) Context() context.Context { return &p.lease }

// ValidUntil returns when the permit ends if it is not renewed, by the clock of the process. After
// it, others may hold its room.
func (p *Permit) ValidUntil() time.Time { return p.lease.ValidUntil() }

// Release releases the permit, in one round trip, or hands it on to a waiter of the process. It
// runs to its end even if ctx is cancelled.
//
// It returns
//
//   - nil if the permit was held until now;
//   - [ErrLost] if it was not, so that others may have held its room;
//   - [ErrReleased] if it was released before, by this method or [Permit.ReleaseAsync]; or
//   - an error that matches store.ErrUnavailable: then the release is retried in the background,
//     and the room is free when the lease expires at the latest.
func (p *Permit) Release(ctx context.Context) error {
	p.end()
	return p.lease.Release(ctx)
}

// ReleaseAsync releases the permit in the background: at once if no other release is in flight, and
// otherwise in a batch of up to 100. The permit's context ends before it returns. If the store does
// not reply, the release is retried until the lease expires, so the room is free by then at the
// latest. A permit that was released before is not affected.
//
// It is for callers that must not wait, such as middleware. [Semaphore.Close], and the store's
// Shutdown, wait for releases in flight.
func (p *Permit) ReleaseAsync() {
	p.end()
	p.lease.ReleaseAsync()
}
