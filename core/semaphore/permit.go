package semaphore

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Permit is a held part of a capacity. Always call Release or ReleaseAsync.
type Permit struct {
	hold  hold
	ctx   permitContext
	fence int64
}

// hold is the state of a permit.
type hold struct {
	pool         *pool
	req          store.PermitRef
	weight       int
	term         lease.Term
	renewed      bool
	released     atomic.Bool
	requestCtx   context.Context // of the request
	lossReported atomic.Bool     // the loss was recorded

	index int // in pool.holds, whose mutex guards it; -1 if it is not there
}

type contextKey struct{}

// FromContext returns the innermost permit that ctx derives from.
func FromContext(ctx context.Context) (*Permit, bool) {
	p, ok := ctx.Value(contextKey{}).(*Permit)
	return p, ok
}

// permitContext is the context of a permit, with the permit as a value.
type permitContext struct {
	lease.Context
	permit *Permit
}

func (c *permitContext) Value(key any) any {
	if key == (contextKey{}) {
		return c.permit
	}
	return c.Context.Value(key)
}

// newPermit returns the permit of a grant, and starts its renewal. If the caller's context has
// ended, or the reply came too late to be of use, it releases the permit and returns an error.
func (s *Semaphore) newPermit(ctx context.Context, req store.PermitRequest, g store.Grant) (*Permit, error) {
	permit := &Permit{fence: g.Fence}
	h := &permit.hold
	h.pool, h.req, h.weight, h.requestCtx, h.index = s.pool, req.Ref(), req.Weight, ctx, -1
	h.renewed = s.config.renew
	h.term.Init(lease.ValidUntil(g.Sent, req.TTL))
	switch {
	case ctx.Err() != nil:
		s.pool.releaseAsync(h.req)
		return nil, lease.Ended(ctx)
	case !h.term.Valid():
		s.pool.releaseAsync(h.req)
		return nil, fmt.Errorf("%w: the permit expired before the store's reply arrived", store.ErrUnavailable)
	}
	permit.ctx.permit = permit
	h.term.Begin(ctx, &permit.ctx.Context, s.config.maxHold, ErrExpired)

	if h.renewed {
		s.pool.keeper.Add(h, g.Sent)
	} else {
		s.pool.keeper.Watch(h, h.term.ValidUntil())
	}
	s.pool.add(h)
	if s.closing.Err() != nil { // Close may have missed it
		permit.ReleaseAsync()
		return nil, ErrClosed
	}
	return permit, nil
}

// TTL implements lease.Hold.
func (h *hold) TTL() time.Duration { return h.req.TTL }

// Renewed implements lease.Hold.
func (h *hold) Renewed(sent time.Time) { h.term.Extend(lease.ValidUntil(sent, h.req.TTL)) }

// Lost implements lease.Hold: the permit has ended in the store, or by the clock.
func (h *hold) Lost() {
	cause := h.endCause()
	h.term.End(cause)
	if h.renewed || !errors.Is(cause, ErrExpired) { // otherwise it ended as configured; Release reports whether that was too early
		h.recordLoss(cause)
	}
	h.pool.forget(h)
}

// endCause returns why the permit has ended without being released.
func (h *hold) endCause() error {
	if h.Due() {
		return ErrLost
	}
	return ErrExpired
}

// recordLoss records, once, that the permit was lost before its holder released it.
func (h *hold) recordLoss(cause error) {
	how := telemetry.Lost
	if errors.Is(cause, ErrExpired) {
		how = telemetry.Expired
	}
	if !h.lossReported.Swap(true) {
		h.pool.leases.Lost(h.requestCtx, how)
	}
}

// Due reports whether the permit is still to be renewed.
func (h *hold) Due() bool { return h.term.Due() }

// endLocal ends the permit in the process. It returns false if it had ended before.
func (h *hold) endLocal() bool {
	if !h.released.CompareAndSwap(false, true) {
		return false
	}
	h.term.End(ErrReleased)
	h.pool.forget(h)
	return true
}

// Key returns the key of the semaphore.
func (p *Permit) Key() string { return p.hold.req.Key }

// Weight returns the weight of the permit.
func (p *Permit) Weight() int { return p.hold.weight }

// Fence returns the number of this permit, as a shared token: it identifies the permit in a log or
// to a resource, and excludes no other.
func (p *Permit) Fence() fence.Token { return fence.Token{Number: p.fence, Shared: true} }

// Context ends when its holder must stop, before the store may grant the permit's room to others.
// Its cause ([context.Cause]) is [ErrExpired] if the permit was not renewed in time or was held for
// too long ([WithMaxHold]), [ErrLost] if the store reports its loss, [ErrReleased] once it is
// released, or that of the context of the request, whose end does not release the permit.
//
// The deadline is computed from the process's own clock at the time before the request was sent,
// and Err reads the clock itself. A paused process cannot: see the package's documentation.
func (p *Permit) Context() context.Context { return &p.ctx }

// ValidUntil returns when the permit ends if it is not renewed, by the clock of the process. After
// it, others may hold its room.
func (p *Permit) ValidUntil() time.Time { return p.ctx.ValidUntil() }

// Release releases the permit, in one round trip. It runs to its end even if ctx is cancelled.
//
// It returns nil if the permit was held until now; [ErrLost] if it was not, so that others may have
// held its room; [ErrReleased] if it was released before, by this method, [Permit.ReleaseAsync], or
// the end of the Semaphore or its store; or an error that matches store.ErrUnavailable: then the
// release is retried in the background, and the room is free when the lease expires at the latest.
func (p *Permit) Release(ctx context.Context) error {
	cause := p.hold.endCause()
	if !p.hold.endLocal() {
		return ErrReleased
	}
	held, err := p.hold.pool.release(ctx, p.hold.req)
	if err == nil && !held {
		p.hold.recordLoss(cause)
		err = ErrLost
	}
	return err
}

// ReleaseAsync releases the permit in the background: at once if no other release is in flight, and
// otherwise in a batch of up to 100. The permit's context ends before it returns. If the store does
// not reply, the release is retried until the lease expires, so the room is free by then at the
// latest. A permit that was released before is not affected.
//
// It is for callers that must not wait, such as middleware. [Semaphore.Close], and the store's
// Shutdown, wait for releases in flight.
func (p *Permit) ReleaseAsync() {
	if p.hold.endLocal() {
		p.hold.pool.releaseAsync(p.hold.req)
	}
}
