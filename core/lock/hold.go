package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// hold is a grant of the store. It carries one lease after the other if it is handed on within the
// process.
type hold struct {
	core   *core
	config config
	id     string
	key    string
	queue  *localQueue // that it may be handed on in; nil if none
	began  time.Time
	term   lease.Term

	mu        sync.Mutex
	shared    bool
	fence     int64 // of the current lease
	lastFence int64
	handOffs  int

	// For telemetry, of the current lease: the context of its request, which is nil once its end
	// was recorded, and its start.
	requestCtx context.Context
	heldSince  time.Time
}

// newHold returns the hold of a grant, and starts its renewal. If the reply came too late to be of
// use, it releases the hold and returns an error.
func (l *Locker) newHold(req store.LockRequest, g store.Grant, q *localQueue) (*hold, error) {
	h := q.allocHold()
	*h = hold{
		core: l.core, config: l.config, id: req.ID, key: req.Key, queue: q, began: time.Now(), shared: req.Shared,
		fence: g.Fence, lastFence: max(g.Fence, g.LastFence),
	}
	h.term.Init(lease.ValidUntil(g.Sent, req.TTL))
	if !h.term.Valid() {
		l.releaseAsync(req.Ref())
		return nil, fmt.Errorf("%w: the lease expired before the store's reply arrived", store.ErrUnavailable)
	}
	l.mu.Lock()
	l.holds[h.id] = h
	l.mu.Unlock()
	if l.config.renew {
		l.keeper.Add(h, g.Sent)
	} else {
		l.keeper.Watch(h, h.term.ValidUntil())
	}
	return h, nil
}

// recordEnd records, once, how the current lease ended. It returns the context of the lease's
// request, or nil if the end was recorded before.
func (h *hold) recordEnd(how telemetry.HoldEnd) context.Context {
	h.mu.Lock()
	ctx, since := h.requestCtx, h.heldSince
	h.requestCtx = nil
	h.mu.Unlock()
	if ctx != nil {
		h.core.telemetry.Ended(ctx, since, how)
	}
	return ctx
}

// recordLoss records that the lease was lost before its holder released it.
func (h *hold) recordLoss(cause error) {
	how := telemetry.Lost
	if errors.Is(cause, ErrExpired) {
		how = telemetry.Expired
	}
	if ctx := h.recordEnd(how); ctx != nil {
		h.core.leases.Lost(ctx, how)
	}
}

// request returns a request about the hold.
func (h *hold) request() store.LockRef {
	h.mu.Lock()
	defer h.mu.Unlock()
	return store.LockRef{
		Name: h.core.name, Key: h.key, ID: h.id, Shared: h.shared, TTL: h.config.ttl, Delay: h.config.delay,
	}
}

// TTL implements lease.Hold.
func (h *hold) TTL() time.Duration { return h.config.ttl }

// Renewed implements lease.Hold.
func (h *hold) Renewed(sent time.Time) { h.term.Extend(lease.ValidUntil(sent, h.config.ttl)) }

// Lost implements lease.Hold: the hold has ended in the store, or by the clock.
func (h *hold) Lost() {
	cause := h.endCause()
	h.term.End(cause)
	if h.config.renew || !errors.Is(cause, ErrExpired) { // otherwise it ended as configured; Unlock reports whether that was too early
		h.recordLoss(cause)
	}
	h.core.forget(h)
	if h.queue != nil {
		h.core.holdEnded(h.queue, h)
	}
}

// endCause returns why the hold has ended without being released.
func (h *hold) endCause() error {
	if h.Due() {
		return ErrLost
	}
	return ErrExpired
}

// Due reports whether the hold is still to be renewed.
func (h *hold) Due() bool { return h.term.Due() }

// renew renews holds in a batch.
func (c *core) renew(ctx context.Context, holds []*hold) ([]bool, error) {
	renewed, err := lease.Due(ctx, holds, (*hold).request, c.store.RenewLocks)
	c.leases.Renewed(ctx, renewed, len(holds), err)
	return renewed, err
}

// forget removes a hold from the local state, and ends its renewal.
func (c *core) forget(h *hold) {
	c.keeper.Remove(h)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds, h.id)
}

// release releases a hold in the store, even if ctx is cancelled. It reports whether the store
// still had it. If the store does not reply, the release is retried in the background.
func (c *core) release(ctx context.Context, h *hold) (bool, error) {
	c.forget(h)
	req := h.request()
	held, err := c.store.ReleaseLock(context.WithoutCancel(ctx), req)
	if err != nil {
		c.retryRelease(req)
	}
	return held, err
}

// releaseAsync releases a hold, a place in the queue, or a request without a reply, in the
// background.
func (c *core) releaseAsync(req store.LockRef) {
	c.calls.Run(func() {
		if _, err := c.store.ReleaseLock(context.Background(), req); err != nil {
			c.retryRelease(req)
		}
	})
}

// retryRelease retries a release until the store confirms it, or the lease has expired.
func (c *core) retryRelease(req store.LockRef) {
	c.releases.Add(time.Now().Add(req.TTL+time.Second), req)
}

// releaseEach releases holds one after the other, and returns the rest after an error.
func (c *core) releaseEach(ctx context.Context, reqs []store.LockRef) ([]store.LockRef, error) {
	for i, req := range reqs {
		if _, err := c.store.ReleaseLock(ctx, req); err != nil && !errors.Is(err, ErrNotSupported) {
			return reqs[i:], err
		}
	}
	return nil, nil
}
