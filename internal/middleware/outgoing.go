package middleware

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Outgoing limits the requests of a client: they wait for tokens, and a key is held when an answer
// asks for a pause.
type Outgoing struct {
	RateLimit
	maxHold time.Duration
	unheld  *telemetry.Repeated
	own     ownHolds
}

const (
	// holdTimeout bounds how long an answer waits until its key is held.
	holdTimeout = time.Second
	// minHold is the shortest hold of a limiter.
	minHold = time.Millisecond
	// maxOwnHolds is the maximum of keys that one client holds by itself.
	maxOwnHolds = 4096
)

// NewOutgoing returns the limit of a client. The limiter is not nil.
func NewOutgoing(l *tokenbucket.Limiter, s setting.Settings) *Outgoing {
	o := &Outgoing{RateLimit: NewRateLimit(l, s), maxHold: s.MaxHold}
	o.unheld = telemetry.NewRepeated(o.logger, "lockkeeper: a key is held in this process alone, since the store did not hold it")
	o.own.init()
	return o
}

// Wait blocks until a request of the key may be sent. Otherwise it returns an error of
// tokenbucket.Limiter's Wait.
func (o *Outgoing) Wait(ctx context.Context, key string) error {
	if err := o.own.wait(ctx, key, false); err != nil {
		return err
	}
	err := o.Limiter.Wait(ctx, key)
	if errors.Is(err, tokenbucket.ErrInvalidKey) && !o.NeedsKey() {
		return nil
	}
	bypasses := err != nil && o.Passes(ctx, err)
	if err != nil && !bypasses {
		return err
	}
	if err == nil {
		o.Decided(ctx)
	}
	return o.own.wait(ctx, key, bypasses) // it may have been held since
}

// NeedsKey reports whether a request without a key must not be sent: the limits of all keys are
// enforced.
func (o *Outgoing) NeedsKey() bool { return o.Limiter.Enforces("") }

// Hold holds a key in all processes for the time that an answer asks for. If the store fails, or
// the key has no limits or they are not enforced, this process alone holds it. The end of ctx does
// not stop that, since the answer is known. A request without a key holds none.
func (o *Outgoing) Hold(ctx context.Context, key string, d time.Duration) {
	if d = min(d, o.maxHold); d <= 0 || key == "" {
		return
	}
	d = max(d, minHold)
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), holdTimeout)
	defer cancel()
	err := o.Limiter.Hold(ctx, key, d)
	if err != nil && !errors.Is(err, tokenbucket.ErrNoLimits) {
		o.unheld.Found(ctx, "error", err)
	}
	if err != nil || o.open.Passes {
		o.own.add(key, began, d, err == nil)
	}
}

// Bounds of holds after refusals without a time.
const (
	leastUnasked = time.Second
	mostUnasked  = time.Minute
)

// HoldUnasked holds a key after a refusal without a time: for a second, and for twice as long as
// the last time if that has ended no longer ago than it lasted.
func (o *Outgoing) HoldUnasked(ctx context.Context, key string) {
	o.Hold(ctx, key, o.own.unasked(key))
}

// ownHolds are the holds of a process without its store.
type ownHolds struct {
	epoch time.Time
	last  atomic.Int64 // the end of the last hold, in nanoseconds since the epoch

	mu      sync.Mutex
	holds   expiry.Table[string, int64]         // the end of a key's hold in this process alone
	repeats expiry.Table[string, time.Duration] // the last hold of a key by HoldUnasked
}

func (h *ownHolds) init() {
	h.epoch = time.Now()
	h.holds = expiry.NewTable[string, int64](maxOwnHolds, nil)
	h.repeats = expiry.NewTable[string, time.Duration](maxOwnHolds, nil)
}

// unasked returns the time to hold a key after a refusal without a time. Several requests that are
// refused during one hold are one refusal.
func (h *ownHolds) unasked(key string) time.Duration {
	now := int64(time.Since(h.epoch))
	h.mu.Lock()
	defer h.mu.Unlock()
	d := leastUnasked
	entry := h.repeats.Get(key, now)
	switch {
	case entry == nil:
		if h.repeats.Room(1, now) {
			h.repeats.Add(strings.Clone(key), d, now+2*int64(d), now)
		}
		return d
	case entry.Expires-now > int64(entry.Value): // that hold has not ended
		return time.Duration(entry.Expires-now) - entry.Value
	}
	d = min(2*entry.Value, mostUnasked)
	entry.Value, entry.Expires = d, now+2*int64(d)
	return d
}

// add records a hold; stored means that the store has it too. Without room it does nothing.
func (h *ownHolds) add(key string, began time.Time, d time.Duration, stored bool) {
	now := int64(time.Since(h.epoch))
	until := int64(began.Sub(h.epoch) + d)
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.holds.Get(key, now)
	if entry == nil {
		if !h.holds.Room(1, now) {
			return
		}
		h.holds.Add(strings.Clone(key), 0, until, now) // it may outlive the request that the key is a part of
		entry = h.holds.Get(key, now)
	}
	if entry == nil { // it is over already
		return
	}
	entry.Expires = max(entry.Expires, until)
	if !stored {
		entry.Value = max(entry.Value, until)
	}
	h.last.Store(max(h.last.Load(), until))
}

// left returns how long a key is held: by all holds, or by the ones that only this process has.
func (h *ownHolds) left(key string, all bool) time.Duration {
	last := h.last.Load()
	if last == 0 {
		return 0
	}
	now := int64(time.Since(h.epoch))
	if last <= now {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	entry := h.holds.Get(key, now)
	switch {
	case entry == nil:
		return 0
	case all:
		return time.Duration(entry.Expires - now)
	}
	return time.Duration(max(entry.Value-now, 0))
}

// wait blocks until a key is no longer held. If that is after the context's deadline, it returns at
// once an error that matches context.DeadlineExceeded.
func (h *ownHolds) wait(ctx context.Context, key string, all bool) error {
	for {
		d := h.left(key, all)
		if d <= 0 {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
			return fmt.Errorf("ratelimit: the key is held until after the deadline: %w", context.DeadlineExceeded)
		}
		if !backoff.Sleep(ctx, d) {
			return ctx.Err()
		}
	}
}
