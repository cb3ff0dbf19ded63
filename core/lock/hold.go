package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/outage"
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

	mu         sync.Mutex
	shared     bool
	fence      int64 // of the present lease
	lastFence  int64
	passes     int
	validUntil time.Time
	limit      time.Time // of the present lease, [WithMaxHold]; zero if there is none
	over       error     // why the hold has ended, whatever the clock says
	ctx        *lease.Context
}

// newHold returns the hold of a grant, which is renewed from now on. It returns an error, and gives
// the hold back, if the reply came too late to be of use.
func (l *Locker) newHold(req AcquireRequest, g Grant, ln *line) (*hold, error) {
	h := &hold{
		core: l.core, config: l.config, id: req.ID, key: req.Key, line: ln, began: time.Now(), shared: req.Shared,
		fence: g.Fence, lastFence: max(g.Fence, g.LastFence), validUntil: lease.ValidUntil(g.Sent, req.TTL),
	}
	if !h.began.Before(h.validUntil) {
		l.giveBack(req.hold())
		return nil, fmt.Errorf("%w: the lease was over before the store's reply was there", outage.ErrUnavailable)
	}
	l.mu.Lock()
	l.holds[h.id] = h
	l.mu.Unlock()
	if l.config.renew {
		l.keeper.Add(h, g.Sent)
	}
	return h, nil
}

// begin starts a lease on the hold.
func (h *hold) begin(parent context.Context) *lease.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.limit = time.Time{}
	if h.config.maxHold > 0 {
		h.limit = time.Now().Add(h.config.maxHold)
	}
	h.ctx = lease.NewContext(parent, h.capped(h.validUntil), ErrExpired)
	if h.over != nil {
		h.ctx.End(h.over)
	}
	return h.ctx
}

// capped is a time, or the lease's longest hold if that is sooner. The caller holds mu.
func (h *hold) capped(t time.Time) time.Time {
	if !h.limit.IsZero() && h.limit.Before(t) {
		return h.limit
	}
	return t
}

// request is a request about the hold.
func (h *hold) request() HoldRequest {
	h.mu.Lock()
	defer h.mu.Unlock()
	return HoldRequest{
		Name: h.core.name, Key: h.key, ID: h.id, Shared: h.shared, TTL: h.config.ttl, Delay: h.config.delay,
	}
}

// alive reports whether others cannot have the lock yet.
func (h *hold) alive(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over == nil && now.Before(h.validUntil)
}

// remaining is for how long the hold is valid, unless it is renewed.
func (h *hold) remaining() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(time.Until(h.validUntil), 0)
}

// TTL implements renewal.Hold.
func (h *hold) TTL() time.Duration { return h.config.ttl }

// Renewed implements renewal.Hold.
func (h *hold) Renewed(sent time.Time) { h.extend(lease.ValidUntil(sent, h.config.ttl)) }

// extend moves the end of the hold on. What was over for a moment stays over: whoever asked at that
// moment was told so.
func (h *hold) extend(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over != nil || !time.Now().Before(h.validUntil) || !until.After(h.validUntil) {
		return
	}
	h.validUntil = until
	if h.ctx != nil {
		h.ctx.Extend(h.capped(until))
	}
}

// Lost implements renewal.Hold: the store, or the clock, says that the hold has ended.
func (h *hold) Lost() {
	cause := ErrLost
	if !h.due(time.Now()) {
		cause = ErrExpired
	}
	h.end(cause)
	h.core.forget(h)
	if h.line != nil {
		h.core.letGo(h.line, h)
	}
}

// end ends the hold, as far as the process is concerned.
func (h *hold) end(cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil {
		h.over = cause
	}
	if h.ctx != nil {
		h.ctx.End(cause)
	}
}

// due reports whether the hold is still to be renewed.
func (h *hold) due(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.over == nil && now.Before(h.capped(h.validUntil))
}

// renew renews holds in one batch. Those that are over in this process are not asked for: a renewal
// would keep others out for nobody's sake.
func (c *core) renew(ctx context.Context, holds []*hold) ([]bool, error) {
	held := make([]bool, len(holds))
	var (
		reqs  []HoldRequest
		index []int
	)
	now := time.Now()
	for i, h := range holds {
		if h.due(now) {
			reqs = append(reqs, h.request())
			index = append(index, i)
		}
	}
	if len(reqs) == 0 {
		return held, nil
	}
	answers, err := c.store.RenewLocks(ctx, reqs)
	if err == nil && len(answers) != len(reqs) {
		err = fmt.Errorf("%w: %d answers to %d renewals", outage.ErrUnavailable, len(answers), len(reqs))
	}
	answers = answers[:min(len(answers), len(reqs))]
	for i, answer := range answers {
		held[index[i]] = answer
	}
	return held, err
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
func (c *core) giveBack(req HoldRequest) {
	c.errands.run(func() {
		if _, err := c.store.ReleaseLock(context.Background(), req); err != nil {
			c.giveBackLater(req)
		}
	})
}

// giveBackLater goes on until the store confirms it, or the lease is over anyway.
func (c *core) giveBackLater(req HoldRequest) {
	c.redo.Add(time.Now().Add(req.TTL+time.Second), func(ctx context.Context) error {
		_, err := c.store.ReleaseLock(ctx, req)
		if errors.Is(err, ErrNotSupported) {
			return nil
		}
		return err
	}, nil)
}
