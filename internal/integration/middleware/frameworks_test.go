package middleware_test

import (
	"net/http"

	"github.com/gin-gonic/gin"
	echov4 "github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echomw"
	v4concurrency "github.com/lockkeeper/lockkeeper/echomw/concurrency"
	v4exclusive "github.com/lockkeeper/lockkeeper/echomw/exclusive"
	v4fenced "github.com/lockkeeper/lockkeeper/echomw/fenced"
	v4idempotency "github.com/lockkeeper/lockkeeper/echomw/idempotency"
	v4ratelimit "github.com/lockkeeper/lockkeeper/echomw/ratelimit"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	v5concurrency "github.com/lockkeeper/lockkeeper/echov5mw/concurrency"
	v5exclusive "github.com/lockkeeper/lockkeeper/echov5mw/exclusive"
	v5fenced "github.com/lockkeeper/lockkeeper/echov5mw/fenced"
	v5idempotency "github.com/lockkeeper/lockkeeper/echov5mw/idempotency"
	v5ratelimit "github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
	"github.com/lockkeeper/lockkeeper/ginmw"
	ginconcurrency "github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	ginexclusive "github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	ginfenced "github.com/lockkeeper/lockkeeper/ginmw/fenced"
	ginidempotency "github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	ginratelimit "github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// framework is a mwtest.Framework for rows without hooks.
type framework func(http.HandlerFunc, []mwtest.Middleware) http.Handler

func (f framework) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	return f(handler, middleware)
}

var (
	onGin    = framework(func(h http.HandlerFunc, m []mwtest.Middleware) http.Handler { return serveGin(h, m) })
	onEchoV4 = framework(func(h http.HandlerFunc, m []mwtest.Middleware) http.Handler { return serveEchoV4(h, m) })
	onEchoV5 = framework(serveEchoV5)
)

// methods are those of the route.
var methods = []string{http.MethodGet, http.MethodPost}

func noOptions(mwtest.Hooks) []setting.HTTPOption { return nil }

// serveGin serves with middleware of gin outermost.
func serveGin(handler http.HandlerFunc, middleware []mwtest.Middleware, outermost ...gin.HandlerFunc) http.Handler {
	cells := mwtest.Cells[gin.HandlerFunc, ginmw.KeyFunc, ginmw.ScopeFunc]{
		RateLimit: ginratelimit.New, Idempotency: ginidempotency.New, Exclusive: ginexclusive.New, Concurrency: ginconcurrency.New, Fenced: ginfenced.New,
		Tiers: func(tier func(*http.Request) policy.Tier) policy.ConcurrencyOption {
			return ginconcurrency.Tiers(func(c *gin.Context) policy.Tier { return tier(c.Request) })
		},
		Costs: func(estimate func(*http.Request) tokenbucket.Cost) policy.RateLimitOption {
			return ginratelimit.Costs(func(c *gin.Context) tokenbucket.Cost { return estimate(c.Request) })
		},
		ByHeader: ginmw.ByHeader, ByParam: ginmw.ByParam, ByContext: ginmw.ByContext, Global: ginmw.Global, Unscoped: ginmw.Unscoped, ScopeBy: ginmw.ScopeBy, Options: noOptions,
	}
	r := gin.New()
	r.Use(outermost...)
	for _, m := range middleware {
		r.Use(cells.Build(m))
	}
	r.Match(methods, mwtest.Path+":id", gin.WrapF(handler))
	return r
}

// serveEchoV4 serves with middleware of echo outermost.
func serveEchoV4(handler http.HandlerFunc, middleware []mwtest.Middleware, outermost ...echov4.MiddlewareFunc) http.Handler {
	cells := mwtest.Cells[echov4.MiddlewareFunc, echomw.KeyFunc, echomw.ScopeFunc]{
		RateLimit: v4ratelimit.New, Idempotency: v4idempotency.New, Exclusive: v4exclusive.New, Concurrency: v4concurrency.New, Fenced: v4fenced.New,
		Tiers: func(tier func(*http.Request) policy.Tier) policy.ConcurrencyOption {
			return v4concurrency.Tiers(func(c echov4.Context) policy.Tier { return tier(c.Request()) })
		},
		Costs: func(estimate func(*http.Request) tokenbucket.Cost) policy.RateLimitOption {
			return v4ratelimit.Costs(func(c echov4.Context) tokenbucket.Cost { return estimate(c.Request()) })
		},
		ByHeader: echomw.ByHeader, ByParam: echomw.ByParam, ByContext: echomw.ByContext, Global: echomw.Global, Unscoped: echomw.Unscoped, ScopeBy: echomw.ScopeBy, Options: noOptions,
	}
	e := echov4.New()
	e.Use(outermost...)
	for _, m := range middleware {
		e.Use(cells.Build(m))
	}
	e.Match(methods, mwtest.Path+":id", echov4.WrapHandler(handler))
	return e
}

func serveEchoV5(handler http.HandlerFunc, middleware []mwtest.Middleware) http.Handler {
	cells := mwtest.Cells[echov5.MiddlewareFunc, echov5mw.KeyFunc, echov5mw.ScopeFunc]{
		RateLimit: v5ratelimit.New, Idempotency: v5idempotency.New, Exclusive: v5exclusive.New, Concurrency: v5concurrency.New, Fenced: v5fenced.New,
		Tiers: func(tier func(*http.Request) policy.Tier) policy.ConcurrencyOption {
			return v5concurrency.Tiers(func(c *echov5.Context) policy.Tier { return tier(c.Request()) })
		},
		Costs: func(estimate func(*http.Request) tokenbucket.Cost) policy.RateLimitOption {
			return v5ratelimit.Costs(func(c *echov5.Context) tokenbucket.Cost { return estimate(c.Request()) })
		},
		ByHeader: echov5mw.ByHeader, ByParam: echov5mw.ByParam, ByContext: echov5mw.ByContext, Global: echov5mw.Global, Unscoped: echov5mw.Unscoped, ScopeBy: echov5mw.ScopeBy, Options: noOptions,
	}
	e := echov5.New()
	for _, m := range middleware {
		e.Use(cells.Build(m))
	}
	e.Match(methods, mwtest.Path+":id", echov5.WrapHandler(handler))
	return e
}
