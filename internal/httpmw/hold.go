package httpmw

import (
	"cmp"
	"context"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Exclusive is exclusive.New.
func Exclusive[C any](a Adapter[C], l *lock.Locker, key func(C) (string, error), opts []policy.ExclusiveOption) Middleware[C] {
	settings := setting.Of(opts)
	return newHold(a, middleware.NewExclusive(l, settings), key, settings)
}

// Concurrency is concurrency.New.
func Concurrency[C any](
	a Adapter[C], s *semaphore.Semaphore, key func(C) (string, error), opts []policy.ConcurrencyOption,
) Middleware[C] {
	settings := setting.Of(opts)
	return newHold(a, middleware.NewConcurrency(s, settings), key, settings)
}

// hold is a middleware whose requests hold a lock, or a permit, while their handlers run.
type hold[C any] struct {
	*base[C]
	*middleware.Hold
	key    func(C) (string, error)
	bodies budget // for bodies that are read early
}

func newHold[C any](a Adapter[C], h *middleware.Hold, key func(C) (string, error), s setting.Settings) Middleware[C] {
	if key == nil {
		panic(h.Package + ": New: nil key")
	}
	m := &hold[C]{base: newBase(a, h.Package, s), Hold: h, key: key, bodies: budget{max: maxEarlyBodies}}
	return m.lending(m.serve)
}

func (m *hold[C]) serve(c C, next func(C) error) error {
	if m.skips(c) {
		return next(c)
	}
	x := &holdExchange[C]{exchange: newExchange(m.base, c, next), m: m, w: m.Writer(c)}
	defer func() { m.bodies.used.Add(-x.early) }()
	m.Serve(x.request.Context(), x)
	return x.err
}

// holdExchange is a middleware.Exchange.
type holdExchange[C any] struct {
	exchange[C]
	m     *hold[C]
	w     http.ResponseWriter
	early int64 // the bytes of the body that were read before the request waited

	observer Observer
	returned bool // the handler has returned
	outside  bool // and has left its answer to middleware outside
}

func (x *holdExchange[C]) Key() (string, error) { return x.keyOf(x.c, x.m.key) }

func (x *holdExchange[C]) Tier() policy.Tier {
	defer x.lend(x.c).back()
	return x.hooks.Tier(x.c)
}

func (x *holdExchange[C]) Waits() { x.early = x.m.bodies.readEarly(x.request) }

func (x *holdExchange[C]) Run(ctx context.Context) (answered bool) {
	answered = true // unless the handler returns
	o := &x.observer
	x.observing(o, func() {
		before := x.left()
		x.handle(x.request.WithContext(ctx))
		answered = x.err != nil || !o.Silent()
		x.returned, x.outside = true, x.leaves(before, o.Begun(), o.Silent())
	})
	return answered
}

// Sample implements middleware.Exchange. An answer that is made outside counts as a failure unless
// its status is known.
func (x *holdExchange[C]) Sample() middleware.Sample {
	status := x.observer.Status()
	if x.err != nil && !x.observer.Begun() {
		status = cmp.Or(x.errors.StatusOf(x.err), http.StatusInternalServerError)
	}
	switch {
	case x.observer.Streams():
		return middleware.StreamedSample
	case !x.returned, x.outside, status >= http.StatusInternalServerError:
		return middleware.FailedSample
	}
	return middleware.WorkedSample
}

func (x *holdExchange[C]) GiveUp(d policy.Denial) { x.giveUp(x.w, d) }

func (x *holdExchange[C]) Bypass() {
	x.Header(x.c).Set(x.m.Status, "bypassed")
	x.handle(x.request)
}
