package echov5mw_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/concurrency"
	"github.com/lockkeeper/lockkeeper/echov5mw/exclusive"
	"github.com/lockkeeper/lockkeeper/echov5mw/fenced"
	"github.com/lockkeeper/lockkeeper/echov5mw/idempotency"
	"github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/mwtest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestTableOfBehaviour(t *testing.T) { mwtest.Run(t, framework{}) }

func BenchmarkRateLimit(b *testing.B) { mwtest.Benchmark(b, framework{}) }

// framework is a mwtest.Framework on echo v5.
type framework struct{}

func (framework) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	e := echo.New()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) (err error) {
			defer func() {
				if recover() != nil {
					err = echo.ErrInternalServerError
				}
			}()
			return next(c)
		}
	})
	chain := make([]echo.MiddlewareFunc, 0, len(middleware))
	for _, m := range middleware {
		chain = append(chain, build(m))
	}
	e.Match([]string{http.MethodPost, http.MethodGet}, mwtest.Path+":id", echo.WrapHandler(handler), chain...)
	return mwtest.WithUser(e)
}

// ServeTraced implements mwtest.Traced. There is otelecho for echo v4 only, so that what traces echo v5 is
// what traces net/http, round the server.
func (f framework) ServeTraced(provider trace.TracerProvider, handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	return otelhttp.NewHandler(f.Serve(handler, middleware...), "things", otelhttp.WithTracerProvider(provider))
}

func build(m mwtest.Middleware) echo.MiddlewareFunc {
	switch m := m.(type) {
	case mwtest.RateLimit:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return ratelimit.New(m.Limiter, key(m.By), m.Options...)
	case mwtest.Idempotency:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		scope := echov5mw.Unscoped()
		if m.By.Kind != mwtest.None {
			scope = echov5mw.ScopeBy(key(m.By))
		}
		if m.KeyFrom.Kind != mwtest.None {
			m.Options = append(m.Options, idempotency.KeyFrom(key(m.KeyFrom)))
		}
		return idempotency.New(m.Guard, scope, m.Options...)
	case mwtest.Exclusive:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return exclusive.New(m.Locker, key(m.By), m.Options...)
	case mwtest.Concurrency:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return concurrency.New(m.Semaphore, key(m.By), m.Options...)
	case mwtest.Fenced:
		for _, o := range hooks(m.Hooks) {
			m.Options = append(m.Options, o)
		}
		return fenced.New(m.Checker, key(m.By), m.Options...)
	}
	panic("unknown middleware")
}

// hooks returns the options for the hooks.
func hooks(h mwtest.Hooks) (options []echov5mw.Option) {
	if h.Skip != nil {
		options = append(options, echov5mw.Unless(func(c *echo.Context) bool { return h.Skip(c.Request()) }))
	}
	if h.Deny != nil {
		options = append(options, echov5mw.OnDeny(deny(h)))
	}
	if h.Report != nil {
		options = append(options, echov5mw.OnError(func(_ *echo.Context, err error) { h.Report(err) }))
	}
	return options
}

func deny(h mwtest.Hooks) func(*echo.Context, policy.Denial) error {
	return func(c *echo.Context, d policy.Denial) error {
		status, body := h.Deny(d)
		return c.String(status, body)
	}
}

func key(k mwtest.Key) echov5mw.KeyFunc {
	switch k.Kind {
	case mwtest.ByHeader:
		return echov5mw.ByHeader(k.Name)
	case mwtest.ByID:
		return echov5mw.ByParam(k.Name)
	case mwtest.ByContext:
		return echov5mw.ByContext(k.ContextKey())
	case mwtest.ByClientIP:
		return echov5mw.ByClientIP(clientip.Direct())
	case mwtest.Global:
		return echov5mw.Global()
	case mwtest.InBody:
		return func(c *echo.Context) (string, error) { return mwtest.EventID(c.Request()) }
	default:
		return func(*echo.Context) (string, error) { return "", k.Err }
	}
}
