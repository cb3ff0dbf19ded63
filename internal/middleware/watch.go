package middleware

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// settled is the least time between the last request that bypassed the store and a decision of the
// store that ends the bypass: a store that fails now and then is logged once.
const settled = time.Second

// Watch reports the events that no answer shows: to the log when they begin and end, to metrics for
// each request. It also decides whether requests pass without the store.
type Watch struct {
	open      setting.Open
	logger    *slog.Logger
	bypasses  *telemetry.Bypasses
	missing   atomic.Bool // a key that the application did not provide has been logged
	mispriced atomic.Bool // a cost that no limit can charge has been logged
	outside   atomic.Bool // an answer that is made outside has been logged
	twice     atomic.Bool // a second place in a chain has been logged

	large sync.Map // the routes of which a too large answer has been logged

	passing atomic.Bool // requests pass without the store
	mu      sync.Mutex  // guards the following fields
	cause   store.Cause
	passed  int
	last    time.Time
}

// newWatch returns the watch of the middleware with this mechanism and policy.
func newWatch(s setting.Settings, mechanism, name string) *Watch {
	logger := cmp.Or(s.Logger, slog.Default()).With("mechanism", mechanism)
	if name != "" {
		logger = logger.With("policy", name)
	}
	return &Watch{
		open: s.Open, logger: logger,
		bypasses: telemetry.NewBypasses(telemetry.Providers{Meter: s.Meter}, policy.ScopeName, name, mechanism),
	}
}

// Passes reports whether a request whose store returned this error passes without it. A request
// whose client has left does not.
func (w *Watch) Passes(ctx context.Context, err error) bool {
	if !w.open.Passes || ctx.Err() != nil {
		return false
	}
	if !store.Down(err) && (!w.open.EvenMisconfigured || !errors.Is(err, store.ErrMisconfigured)) {
		return false
	}
	cause := store.CauseOf(err)
	w.bypasses.Add(ctx, cause)
	w.mu.Lock()
	begins := !w.passing.Swap(true)
	changed := begins || cause != w.cause
	w.cause, w.last = cause, time.Now()
	w.passed++
	w.mu.Unlock()
	if changed {
		w.logger.WarnContext(ctx, "lockkeeper: requests bypass the store", "cause", string(cause), "error", err)
	}
	return true
}

// Decided is called when the store has decided about a request.
func (w *Watch) Decided(ctx context.Context) {
	if w.passing.Load() {
		w.end(ctx)
	}
}

func (w *Watch) end(ctx context.Context) {
	w.mu.Lock()
	if time.Since(w.last) < settled || !w.passing.Swap(false) {
		w.mu.Unlock()
		return
	}
	passed := w.passed
	w.passed, w.cause = 0, ""
	w.mu.Unlock()
	w.logger.InfoContext(ctx, "lockkeeper: requests no longer bypass the store", "passed", passed)
}

// Mispriced logs the first cost that the application asks for and that no limit can charge.
func (w *Watch) Mispriced(ctx context.Context, err error) {
	if !w.mispriced.Swap(true) {
		w.logger.ErrorContext(ctx, "lockkeeper: the application gives requests a cost that their limits cannot charge", "error", err)
	}
}

// twiceInChain logs the first request that is refused because the middleware is twice in its chain.
func (w *Watch) twiceInChain(ctx context.Context, err error) {
	if !w.twice.Swap(true) {
		w.logger.ErrorContext(ctx, "lockkeeper: requests are refused because the same middleware is in their chain twice", "error", err)
	}
}

// AnsweredOutside logs the first request whose handler left its answer to middleware outside, such
// as one that renders errors: this middleware does not see that answer.
func (w *Watch) AnsweredOutside(ctx context.Context) {
	if !w.outside.Swap(true) {
		w.logger.ErrorContext(ctx, "lockkeeper: handlers leave their answers to middleware outside, which is not seen here: "+
			"middleware that renders errors or values stands behind this one")
	}
}

// TooLarge logs the first answer of each route that is larger than its guard keeps. Routes are
// patterns, so there are few.
func (m *Idempotency) TooLarge(ctx context.Context, route string) {
	if _, logged := m.large.LoadOrStore(route, true); !logged {
		m.logger.WarnContext(ctx, "lockkeeper: an answer is larger than the guard keeps (guard.WithMaxResult), so a repeat is refused",
			"route", route, "max_result", m.Guard.MaxResult())
	}
}

// NoKey returns the denial for an error of a key function, or for an empty key, which is none. It
// logs the first key that the application did not provide.
func (w *Watch) NoKey(ctx context.Context, err error) policy.Denial {
	if err == nil || errors.Is(err, policy.ErrNoKey) {
		return policy.Denial{Reason: policy.KeyMissing, Err: policy.ErrNoKey}
	}
	if errors.Is(err, policy.ErrNotProvided) && !w.missing.Swap(true) {
		w.logger.ErrorContext(ctx, "lockkeeper: the application does not provide the key of requests", "error", err)
	}
	return policy.Denial{Reason: policy.InternalError, Err: err}
}
