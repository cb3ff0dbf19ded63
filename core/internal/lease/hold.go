package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Hold is a grant of the store. It carries one lease after the other if it is handed on within the
// process.
type Hold struct {
	pool     *Pool
	config   *Config
	ref      [1]store.LeaseRef
	last     int64 // fence
	capacity int   // at the grant
	began    time.Time
	term     Term
	entry    Entry[*Hold]
	weight   atomic.Int64 // a downgrade reduces it
	length   atomic.Int64 // of the term from its last renewal
	initial  *Lease       // memory for the first lease
	held     live.Mark    // guarded by the pool's mu

	// Guarded by the pool's mu.
	queue   *queue // in which it may be handed on; nil if none
	index   int    // in the queue's holds
	fence   int64  // of the current lease
	passes  int
	lease   *Lease // the current one
	givenUp bool   // its release was sent, since it is lost
}

// newHold returns the hold of a grant, and starts its renewal. If the reply came too late to be of
// use, it releases the hold and returns an error.
func (p *Pool) newHold(req *store.LeaseRequest, g store.Grant, c *Config) (*Hold, error) {
	l, h := p.Alloc(true)
	h.pool, h.config, h.initial, h.ref[0] = p, c, l, req.Ref(g.Fence)
	h.fence, h.last, h.capacity, h.began = g.Fence, max(g.Fence, g.LastFence), req.Capacity, time.Now()
	h.weight.Store(int64(req.Weight))
	length := c.TTL
	if g.TTL > 0 {
		length = min(length, g.TTL-c.Delay)
	}
	h.length.Store(int64(length))
	h.term.Init(ValidUntil(g.Sent, length))
	if !h.term.Valid() {
		p.releases.Add(h.ref[0])
		return nil, fmt.Errorf("%w: the lease expired before the store's reply arrived", store.ErrUnavailable)
	}
	if c.Renew {
		p.renewed.Begin()
	}
	p.mu.Lock()
	p.holds[req.ID] = h
	p.inUse += req.Weight
	p.peak = max(p.peak, p.inUse)
	p.mu.Unlock()
	h.held = p.Telemetry.Holding(context.Background(), req.Weight)
	switch {
	case length < c.TTL:
		p.keeper.TakeUp(h, g.Sent, length, !c.Renew)
	case c.Renew:
		p.keeper.Add(h, g.Sent)
	default:
		p.keeper.Watch(h, h.term.ValidUntil())
	}
	return h, nil
}

// start returns a lease on a hold, unless the caller's context has ended since.
func (p *Pool) start(ctx context.Context, h *Hold) (*Lease, error) {
	if err := p.over(ctx); err != nil {
		p.calls.Run(func() { _ = p.end(context.Background(), h, false) })
		return nil, err
	}
	l := h.initial
	if h.initial = nil; l == nil {
		l, _ = p.Alloc(false)
	}
	l.hold, l.parent, l.since = h, ctx, p.Telemetry.Hold(ctx)
	h.term.Begin(ctx, &l.Context, h.config.MaxHold, p.ErrExpired)
	p.mu.Lock()
	l.fence, h.lease = h.fence, l
	p.mu.Unlock()
	return l, nil
}

// TTL implements Kept.
func (h *Hold) TTL() time.Duration { return h.config.TTL }

// Due implements Kept.
func (h *Hold) Due() bool { return h.term.Due() }

// Entry implements Kept.
func (h *Hold) Entry() *Entry[*Hold] { return &h.entry }

// Renewed implements Kept.
func (h *Hold) Renewed(sent time.Time) {
	h.length.Store(int64(h.config.TTL))
	h.term.Extend(ValidUntil(sent, h.config.TTL))
}

// Lost implements Kept: the hold has ended in the store, or by the clock.
func (h *Hold) Lost() { h.lost(h.endCause()) }

func (h *Hold) lost(cause error) {
	p := h.pool
	// A late renewal would keep the hold without a holder, so it is released. A lock-delay,
	// WithMaxHold or WithoutRenewal keeps it closed until it ends in the store.
	lost := errors.Is(cause, p.ErrLost)
	giveUp := lost || h.config.Renew && h.config.Delay == 0 && !h.term.Valid()
	h.term.End(cause)
	p.mu.Lock()
	l, held := h.lease, p.remove(h)
	h.givenUp = h.givenUp || held && giveUp
	p.mu.Unlock()
	if !held {
		return
	}
	p.keeper.Remove(h)
	if giveUp {
		p.releases.Add(h.ref[0])
	}
	if h.config.Renew || lost { // otherwise it ended as configured; its release reports whether that was too early
		p.recordLoss(l, cause)
	}
}

// endCause returns the cause of the end of a hold that was not released.
func (h *Hold) endCause() error {
	if h.Due() {
		return h.pool.ErrLost
	}
	return h.pool.ErrExpired
}

// remove removes a hold from the pool and its queue, which continues. It reports whether the hold
// was there. The caller holds mu.
func (p *Pool) remove(h *Hold) bool {
	if p.holds[h.ref[0].ID] != h {
		return false
	}
	delete(p.holds, h.ref[0].ID)
	p.inUse -= int(h.weight.Load())
	if h.config.Renew {
		p.renewed.End()
	}
	p.Telemetry.Released(context.Background(), h.held, int(h.weight.Load()))
	if q := h.queue; q != nil {
		q.drop(h)
		p.kick(q)
	}
	return true
}

// recordEnd records, once, how a lease ended. It returns the context of its request, or nil if the
// end was recorded before.
func (p *Pool) recordEnd(l *Lease, how telemetry.HoldEnd) context.Context {
	if l == nil {
		return nil
	}
	p.mu.Lock()
	recorded := l.recorded
	l.recorded = true
	p.mu.Unlock()
	if recorded {
		return nil
	}
	p.Telemetry.Ended(l.parent, l.since, how)
	return l.parent
}

// recordLoss records that a lease was lost before its holder released it.
func (p *Pool) recordLoss(l *Lease, cause error) {
	how := telemetry.Lost
	if errors.Is(cause, p.ErrExpired) {
		how = telemetry.Expired
	}
	if ctx := p.recordEnd(l, how); ctx != nil {
		p.Leases.Lost(ctx, how)
	}
}

// end ends the current lease of a hold. The hold is handed on to the next waiter, or released in
// the store, in the background if async is set.
func (p *Pool) end(ctx context.Context, h *Hold, async bool) error {
	p.calls.Begin()
	defer p.calls.End()
	ahead := h.term.Valid()
	cause := h.endCause()
	p.mu.Lock()
	l, q := h.lease, h.queue
	if p.handOn(h) {
		p.mu.Unlock()
		p.recordEnd(l, telemetry.Released)
		return nil
	}
	if q != nil && !async {
		q.flying++ // the queue continues when the store has the release
	}
	p.remove(h)
	givenUp := h.givenUp
	p.mu.Unlock()
	p.keeper.Remove(h)
	switch {
	case givenUp:
		return p.ErrLost
	case async:
		p.releases.Add(h.ref[0])
		p.recordEnd(l, telemetry.Released)
		return nil
	}
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	outcomes, err := p.store.ReleaseLeases(ctx, h.ref[:])
	if err != nil {
		p.releases.Retry(h.ref[:], nil)
	}
	if q != nil {
		p.mu.Lock()
		q.flying--
		p.kick(q)
		p.mu.Unlock()
	}
	outcome := store.ReleaseUnknown
	if len(outcomes) == 1 {
		outcome = outcomes[0]
	}
	switch {
	case h.config.Delay > 0 && !ahead:
		err = p.ErrExpired
	case err == nil && (outcome == store.NotHeld || outcome == store.ReleaseUnknown && !ahead):
		err = p.ErrLost
	default:
		p.recordEnd(l, telemetry.Released)
		return err
	}
	p.recordLoss(l, cause)
	return err
}
