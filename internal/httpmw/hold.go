package httpmw

import (
	"context"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Exclusive is exclusive.New.
func Exclusive[C any](a Adapter[C], l *lock.Locker, key func(C) (string, error), opts []policy.ExclusiveOption) Middleware[C] {
	if l == nil {
		panic("exclusive: New: nil locker")
	}
	if key == nil {
		panic("exclusive: New: nil key")
	}
	settings := setting.Of(opts)
	m := &hold[C]{
		base: newBase(a, "exclusive", settings), key: key,
		hold: middleware.NewExclusive(l, settings), status: "Lock-Status",
	}
	return m.serve
}

// Concurrency is concurrency.New.
func Concurrency[C any](
	a Adapter[C], s *semaphore.Semaphore, key func(C) (string, error), opts []policy.ConcurrencyOption,
) Middleware[C] {
	if s == nil {
		panic("concurrency: New: nil semaphore")
	}
	if key == nil {
		panic("concurrency: New: nil key")
	}
	settings := setting.Of(opts)
	m := &hold[C]{
		base: newBase(a, "concurrency", settings), key: key,
		hold: middleware.NewConcurrency(s, settings), status: "Concurrency-Status",
	}
	return m.serve
}

// hold is a middleware whose requests hold a lock, or a permit, while their handlers run.
type hold[C any] struct {
	*base[C]
	key    func(C) (string, error)
	hold   *middleware.Hold
	status string // the header field of an answer that ran without
	bodies earlyBodies
}

func (m *hold[C]) serve(c C, next func(C) error) error {
	if m.skips(c) {
		return next(c)
	}
	x := &holdExchange[C]{exchange: newExchange(m.base, c, next), m: m}
	defer func() { m.bodies.taken.Add(-x.early) }()
	m.hold.Serve(x.request.Context(), x)
	return x.err
}

// holdExchange is a middleware.Exchange.
type holdExchange[C any] struct {
	exchange[C]
	m     *hold[C]
	early int64 // the bytes of the body that were read before the request waited
}

func (x *holdExchange[C]) Key() (string, error) { return x.m.key(x.c) }

func (x *holdExchange[C]) Waits() { x.early = x.m.bodies.read(x.request) }

func (x *holdExchange[C]) Run(ctx context.Context) { x.handle(x.request.WithContext(ctx)) }

func (x *holdExchange[C]) Bypass() {
	x.Header(x.c).Set(x.m.status, "bypassed")
	x.handle(x.request)
}
