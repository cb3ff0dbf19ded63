package echov5mw_test

import (
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/concurrency"
	"github.com/lockkeeper/lockkeeper/echov5mw/exclusive"
	"github.com/lockkeeper/lockkeeper/echov5mw/fenced"
	"github.com/lockkeeper/lockkeeper/echov5mw/idempotency"
	"github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestTableOfBehaviour(t *testing.T) { mwtest.Run(t, framework{}) }

func TestTableOnStores(t *testing.T) { mwtest.RunWaits(t, framework{}) }

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
		chain = append(chain, cells.Build(m))
	}
	e.Match([]string{http.MethodPost, http.MethodGet}, mwtest.Path+":id", echo.WrapHandler(handler), chain...)
	return mwtest.WithUser(e)
}

// cells are the middleware of echov5mw.
var cells = mwtest.Cells[echo.MiddlewareFunc, echov5mw.KeyFunc, echov5mw.ScopeFunc]{
	RateLimit: ratelimit.New, Idempotency: idempotency.New, Exclusive: exclusive.New, Concurrency: concurrency.New, Fenced: fenced.New,
	KeyFrom: idempotency.KeyFrom, ByHeader: echov5mw.ByHeader, ByParam: echov5mw.ByParam, ByContext: echov5mw.ByContext,
	ByClientIP: echov5mw.ByClientIP, Global: echov5mw.Global, ScopeBy: echov5mw.ScopeBy, Unscoped: echov5mw.Unscoped,
	ByRequest: func(key func(*http.Request) (string, error)) echov5mw.KeyFunc {
		return func(c *echo.Context) (string, error) { return key(c.Request()) }
	},
	Tiers: func(tier func(*http.Request) policy.Tier) policy.ConcurrencyOption {
		return concurrency.Tiers(func(c *echo.Context) policy.Tier { return tier(c.Request()) })
	},
	Costs: func(estimate func(*http.Request) tokenbucket.Cost) policy.RateLimitOption {
		return ratelimit.Costs(func(c *echo.Context) tokenbucket.Cost { return estimate(c.Request()) })
	},
	Usage: func(l *tokenbucket.Limiter, key echov5mw.KeyFunc, hooks []setting.HTTPOption) echo.MiddlewareFunc {
		usage := ratelimit.Usage(l, key, mwtest.Convert[echov5mw.Option](hooks)...)
		return func(echo.HandlerFunc) echo.HandlerFunc { return usage }
	},
	Set: func(name, field string) echo.MiddlewareFunc {
		return func(next echo.HandlerFunc) echo.HandlerFunc {
			return func(c *echo.Context) error {
				c.Set(name, c.Request().Header.Get(field))
				return next(c)
			}
		}
	},
	Options: options,
}

// options returns the options for hooks.
func options(h mwtest.Hooks) (options []setting.HTTPOption) {
	if h.Skip != nil {
		options = append(options, echov5mw.Unless(func(c *echo.Context) bool { return h.Skip(c.Request()) }))
	}
	if h.Networks != nil {
		options = append(options, echov5mw.Unless(echov5mw.ClientIn(clientip.Direct(), h.Networks...)))
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
