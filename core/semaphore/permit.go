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

// Permit is room that is taken. Whoever got it calls Release or ReleaseSoon, always.
type Permit struct {
	hold  hold
	ctx   permitContext
	fence int64
}

// hold is a permit as the store and its pool know it.
type hold struct {
	pool     *pool
	req      store.PermitRef
	weight   int
	term     lease.Term
	renewed  bool
	released atomic.Bool
	asked    context.Context // what it was asked for with
	told     atomic.Bool     // that it was lost

	index int // in pool.holds, whose mutex guards it; -1 when it is not there
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

// start returns the permit of a caller whose request has been granted, and has it renewed from now on.
// It returns an error, and gives the permit back, if the caller has left meanwhile, or if the reply
// came too late to be of use.
func (s *Semaphore) start(ctx context.Context, req store.PermitRequest, g store.Grant) (*Permit, error) {
	permit := &Permit{fence: g.Fence}
	h := &permit.hold
	h.pool, h.req, h.weight, h.asked, h.index = s.pool, req.Ref(), req.Weight, ctx, -1
	h.renewed = s.config.renew
	h.term.Init(lease.ValidUntil(g.Sent, req.TTL))
	switch {
	case ctx.Err() != nil:
		s.pool.giveBack(h.req)
		return nil, lease.Ended(ctx)
	case !h.term.Valid():
		s.pool.giveBack(h.req)
		return nil, fmt.Errorf("%w: the permit had expired before the store's reply was there", store.ErrUnavailable)
	}
	permit.ctx.permit = permit
	h.term.Begin(ctx, &permit.ctx.Context, s.config.maxHold, ErrExpired)

	if h.renewed {
		s.pool.keeper.Add(h, g.Sent)
	} else {
		s.pool.keeper.Watch(h, h.term.ValidUntil())
	}
	s.pool.add(h)
	if s.closing.Err() != nil { // Close may not have seen it
		permit.ReleaseSoon()
		return nil, ErrClosed
	}
	return permit, nil
}

// TTL implements renewal.Hold.
func (h *hold) TTL() time.Duration { return h.req.TTL }

// Renewed implements renewal.Hold.
func (h *hold) Renewed(sent time.Time) { h.term.Extend(lease.ValidUntil(sent, h.req.TTL)) }

// Lost implements renewal.Hold: the store, or the clock, says that the permit has ended.
func (h *hold) Lost() {
	cause := h.why()
	h.term.End(cause)
	if h.renewed || !errors.Is(cause, ErrExpired) { // else it ended when it was to end; Release reports if that was too early
		h.lost(cause)
	}
	h.pool.forget(h)
}

// why is the reason for which the permit has ended without being released.
func (h *hold) why() error {
	if h.Due() {
		return ErrLost
	}
	return ErrExpired
}

// lost tells, once, that others may have had the permit's room while its holder believed in it.
func (h *hold) lost(cause error) {
	how := telemetry.Lost
	if errors.Is(cause, ErrExpired) {
		how = telemetry.Expired
	}
	if !h.told.Swap(true) {
		h.pool.leases.Lost(h.asked, how)
	}
}

// Due reports whether the permit is still to be renewed.
func (h *hold) Due() bool { return h.term.Due() }

// end ends the permit, as far as the process is concerned. It reports false if that was done before.
func (h *hold) end() bool {
	if !h.released.CompareAndSwap(false, true) {
		return false
	}
	h.term.End(ErrReleased)
	h.pool.forget(h)
	return true
}

// Key returns the key of the semaphore.
func (p *Permit) Key() string { return p.hold.req.Key }

// Weight returns for how many the permit counts.
func (p *Permit) Weight() int { return p.hold.weight }

// Fence returns the number of this permit, as a shared token: it tells the permit from others, in a log
// or to a resource, and excludes nobody.
func (p *Permit) Fence() fence.Token { return fence.Token{Number: p.fence, Shared: true} }

// Context ends when its holder must stop, before the store may give the permit's room to others, with
// the cause ([context.Cause]) [ErrExpired] when the permit could not be renewed in time or was held for
// too long ([WithMaxHold]), [ErrLost] when the store says that it is lost, [ErrReleased] once it is
// released, or with the context that the permit was asked for with: that one's end does not release
// the permit.
//
// The end is reckoned by the clock of the process alone, from before the request was sent, and Err
// looks at the clock itself. A process that does not run cannot look: see the package's
// documentation.
func (p *Permit) Context() context.Context { return &p.ctx }

// ValidUntil returns when the permit ends if it is not renewed, by the clock of the process. After it,
// others may have its room.
func (p *Permit) ValidUntil() time.Time { return p.ctx.ValidUntil() }

// Release gives the permit back, in one round trip. It runs to its end even if ctx is cancelled.
//
// It returns nil if the permit was held until now; [ErrLost] if it was not, so that others may have had
// its room; [ErrReleased] if it was released before, by this method, [Permit.ReleaseSoon], or the end
// of the Semaphore or its store; or an error that matches store.ErrUnavailable: then it is tried again in
// the background, and the room is free once the lease is over at the latest.
func (p *Permit) Release(ctx context.Context) error {
	cause := p.hold.why()
	if !p.hold.end() {
		return ErrReleased
	}
	held, err := p.hold.pool.release(ctx, p.hold.req)
	if err == nil && !held {
		p.hold.lost(cause)
		err = ErrLost
	}
	return err
}

// ReleaseSoon gives the permit back without waiting for the store, which is told in the background:
// at once if it is not being told of others, and of up to 100 together if it is. The permit's context
// ends before it returns. If the store does not answer it is told again, until the lease is over; so
// the room is free by then at the latest. A permit that was released before is left alone.
//
// It is for those whose answer must not wait, such as middleware. [Semaphore.Close], and the store's
// Shutdown, finish what is under way.
func (p *Permit) ReleaseSoon() {
	if p.hold.end() {
		p.hold.pool.giveBack(p.hold.req)
	}
}
