package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/renewal"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// hold is what the store has granted. One lease after the other may stand on it: it is handed on
// within the process.
type hold struct {
	core   *core
	config config
	id     string
	key    string
	line   *line // whose hold it is; nil if it is never handed on
	began  time.Time
	term   lease.Term

	mu        sync.Mutex
	shared    bool
	fence     int64 // of the present lease
	lastFence int64
	passes    int

	// Of the present lease: under what it was asked for, and since when it is held, for telemetry. The
	// context is nil when its end has been told.
	asked context.Context
	since time.Time
}

// newHold returns the hold of a grant, which is renewed from now on. It returns an error, and gives
// the hold back, if the reply came too late to be of use.
func (l *Locker) newHold(req store.LockRequest, g store.Grant, ln *line) (*hold, error) {
	h := ln.memory()
	*h = hold{
		core: l.core, config: l.config, id: req.ID, key: req.Key, line: ln, began: time.Now(), shared: req.Shared,
		fence: g.Fence, lastFence: max(g.Fence, g.LastFence),
	}
	h.term.Init(lease.ValidUntil(g.Sent, req.TTL))
	if !h.term.Valid() {
		l.giveBack(req.Ref())
		return nil, fmt.Errorf("%w: the lease was over before the store's reply was there", store.ErrUnavailable)
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

// ended tells how the present lease has ended, unless that has been told. It returns the context that the
// lease was asked for with, or nil.
func (h *hold) ended(how telemetry.HoldEnd) context.Context {
	h.mu.Lock()
	ctx, since := h.asked, h.since
	h.asked = nil
	h.mu.Unlock()
	if ctx != nil {
		h.core.telemetry.Ended(ctx, since, how)
	}
	return ctx
}

// lost tells that others may have had the lock while its holder believed to have it.
func (h *hold) lost(cause error) {
	how := telemetry.Lost
	if errors.Is(cause, ErrExpired) {
		how = telemetry.Expired
	}
	if ctx := h.ended(how); ctx != nil {
		h.core.leases.Lost(ctx, how)
	}
}

// request is a request about the hold.
func (h *hold) request() store.LockRef {
	h.mu.Lock()
	defer h.mu.Unlock()
	return store.LockRef{
		Name: h.core.name, Key: h.key, ID: h.id, Shared: h.shared, TTL: h.config.ttl, Delay: h.config.delay,
	}
}

// TTL implements renewal.Hold.
func (h *hold) TTL() time.Duration { return h.config.ttl }

// Renewed implements renewal.Hold.
func (h *hold) Renewed(sent time.Time) { h.term.Extend(lease.ValidUntil(sent, h.config.ttl)) }

// Lost implements renewal.Hold: the store, or the clock, says that the hold has ended.
func (h *hold) Lost() {
	cause := h.why()
	h.term.End(cause)
	if h.config.renew || !errors.Is(cause, ErrExpired) { // else it ended when it was to end; Unlock reports if that was too early
		h.lost(cause)
	}
	h.core.forget(h)
	if h.line != nil {
		h.core.letGo(h.line, h)
	}
}

// why is the reason for which the hold has ended without being released.
func (h *hold) why() error {
	if h.Due() {
		return ErrLost
	}
	return ErrExpired
}

// Due reports whether the hold is still to be renewed.
func (h *hold) Due() bool { return h.term.Due() }

// renew renews holds in one batch.
func (c *core) renew(ctx context.Context, holds []*hold) ([]bool, error) {
	renewed, err := renewal.Due(ctx, holds, (*hold).request, c.store.RenewLocks)
	c.leases.Renewed(ctx, renewed, len(holds), err)
	return renewed, err
}

// forget ends the renewal of a hold.
func (c *core) forget(h *hold) {
	c.keeper.Remove(h)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.holds, h.id)
}

// release gives a hold back to the store, whatever the caller's context says. It reports whether
// the store still had it. If the store does not answer, it is asked again in the background.
func (c *core) release(ctx context.Context, h *hold) (bool, error) {
	c.forget(h)
	req := h.request()
	held, err := c.store.ReleaseLock(context.WithoutCancel(ctx), req)
	if err != nil {
		c.giveBackLater(req)
	}
	return held, err
}

// giveBack releases, in the background, what nobody wants: a hold, a place in the queue, or a
// request of which nothing is known.
func (c *core) giveBack(req store.LockRef) {
	c.errands.Run(func() {
		if _, err := c.store.ReleaseLock(context.Background(), req); err != nil {
			c.giveBackLater(req)
		}
	})
}

// giveBackLater goes on until the store confirms it, or the lease is over anyway.
func (c *core) giveBackLater(req store.LockRef) {
	c.undo.Add(time.Now().Add(req.TTL+time.Second), req)
}

// releaseEach releases one hold after the other, and returns those that are left after an error.
func (c *core) releaseEach(ctx context.Context, reqs []store.LockRef) ([]store.LockRef, error) {
	for i, req := range reqs {
		if _, err := c.store.ReleaseLock(ctx, req); err != nil && !errors.Is(err, ErrNotSupported) {
			return reqs[i:], err
		}
	}
	return nil, nil
}
