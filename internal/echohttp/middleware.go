package echohttp

import (
	"fmt"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/httpfence"
	"github.com/lockkeeper/lockkeeper/internal/httpguard"
	"github.com/lockkeeper/lockkeeper/internal/httphold"
	"github.com/lockkeeper/lockkeeper/internal/httplimit"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// RateLimit is ratelimit.New of a version whose handlers are of type H.
func RateLimit[H ~func(C) error, C Context](
	v Version[C], l *tokenbucket.Limiter, key func(C) (string, error), opts []policy.RateLimitOption,
) func(H) H {
	if l == nil {
		panic("ratelimit: New: nil limiter")
	}
	if key == nil {
		panic("ratelimit: New: nil key")
	}
	settings := setting.ForRateLimit(opts)
	b := newBase(v, "ratelimit", settings.Common)
	middleware := httplimit.New(l, settings)

	return func(next H) H {
		return func(c C) error {
			if b.skips(c) {
				return next(c)
			}
			k, err := key(c)
			denial := middleware.Check(c.Request().Context(), b.Response(c).Header(), k, err)
			if denial != nil {
				return b.refuse(c, *denial)
			}
			return next(c)
		}
	}
}

// Exclusive is exclusive.New of a version whose handlers are of type H.
func Exclusive[H ~func(C) error, C Context](
	v Version[C], l *lock.Locker, key func(C) (string, error), opts []policy.ExclusiveOption,
) func(H) H {
	if l == nil {
		panic("exclusive: New: nil locker")
	}
	if key == nil {
		panic("exclusive: New: nil key")
	}
	settings := setting.ForExclusive(opts)
	b := newBase(v, "exclusive", settings.Common)
	middleware := httphold.Exclusive(l, settings)

	return func(next H) H {
		return func(c C) error {
			if b.skips(c) {
				return next(c)
			}
			x := newExchange(b, c, key, next)
			middleware.Serve(b.Response(c).Header(), c.Request(), x)
			return x.err
		}
	}
}

// Concurrency is concurrency.New of a version whose handlers are of type H.
func Concurrency[H ~func(C) error, C Context](
	v Version[C], s *semaphore.Semaphore, key func(C) (string, error), opts []policy.ConcurrencyOption,
) func(H) H {
	if s == nil {
		panic("concurrency: New: nil semaphore")
	}
	if key == nil {
		panic("concurrency: New: nil key")
	}
	settings := setting.ForConcurrency(opts)
	b := newBase(v, "concurrency", settings.Common)
	middleware, err := httphold.Concurrency(s, settings)
	if err != nil {
		panic(fmt.Sprintf("concurrency: New: %v", err))
	}

	return func(next H) H {
		return func(c C) error {
			if b.skips(c) {
				return next(c)
			}
			x := newExchange(b, c, key, next)
			middleware.Serve(b.Response(c).Header(), c.Request(), x)
			return x.err
		}
	}
}

// Fenced is fenced.New of a version whose handlers are of type H.
func Fenced[H ~func(C) error, C Context](
	v Version[C], checker fence.Checker, key func(C) (string, error), opts []policy.FencedOption,
) func(H) H {
	settings := setting.ForFenced(opts)
	middleware := httpfence.New(checker, settings)
	if key == nil {
		panic("fenced: New: nil key")
	}
	b := newBase(v, "fenced", settings.Common)

	return func(next H) H {
		return func(c C) error {
			if b.skips(c) {
				return next(c)
			}
			x := newExchange(b, c, key, next)
			middleware.Serve(b.Response(c).Header(), c.Request(), x)
			return x.err
		}
	}
}

// Scope is the ScopeFunc of a version.
type Scope[C Context] interface {
	IsZero() bool
	Of(c C) (string, error)
}

// Idempotency is idempotency.New of a version whose handlers are of type H and whose package is called
// framework.
func Idempotency[H ~func(C) error, C Context](
	v Version[C], framework string, g *guard.Guard, scope Scope[C], opts []policy.IdempotencyOption,
) func(H) H {
	if g == nil {
		panic("idempotency: New: nil guard")
	}
	if scope.IsZero() {
		panic(fmt.Sprintf("idempotency: New: no scope; use %[1]s.ScopeBy or %[1]s.Unscoped", framework))
	}
	settings := setting.ForIdempotency(opts)
	b := newBase(v, "idempotency", settings.Common)
	key := setting.Hook[func(C) (string, error)]("idempotency", settings.Key)
	middleware := httpguard.New(g, settings)

	return func(next H) H {
		return func(c C) error {
			if b.skips(c) {
				return next(c)
			}
			x := &guarded[C]{newExchange(b, c, scope.Of, next), key}
			middleware.Serve(b.Response(c), c.Request(), x)
			return x.err
		}
	}
}

// guarded is a httpguard.Exchange, whose scope is the exchange's key.
type guarded[C Context] struct {
	*exchange[C]
	key func(C) (string, error)
}

func (x *guarded[C]) Key(r *http.Request) (string, error) {
	x.c.SetRequest(r)
	defer x.c.SetRequest(x.request)
	return x.key(x.c)
}

func (x *guarded[C]) Scope() (string, error) { return x.exchange.Key() }

func (x *guarded[C]) DefaultStatus() int { return http.StatusOK }

// End does nothing: a handler that is not called does not run.
func (x *guarded[C]) End() {}

func (x *guarded[C]) Pass(r *http.Request) { x.exchange.Run(r) }

// Run has the handler answer into the capture. What a handler that returns an error answers is for the
// application's error handler to say, so it is called here, and not again by echo.
func (x *guarded[C]) Run(capture *httpguard.Capture, r *http.Request) {
	restore := x.Replace(x.c, capture)
	defer func() {
		if x.current() { // otherwise what is written to the capture passes through, once it has been sent
			restore()
		}
	}()
	x.c.SetRequest(r)
	defer x.restoreRequest()
	if err := x.next(x.c); err != nil {
		begun := capture.Begun()
		x.Render(x.c, err)
		if !begun { // so this is the answer to the error, with whatever status
			middleware.NoteOf(r.Context()).Answered(capture.Status(), err)
		}
	}
}
