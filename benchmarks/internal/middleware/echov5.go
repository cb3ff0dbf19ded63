package middleware

import (
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/idempotency"
	"github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
)

func echo5Site(r requests, end func(), middleware ...echo.MiddlewareFunc) (site, error) {
	runs := new(int)
	e := echo.New()
	e.Use(middleware...)
	e.POST("/orders", func(c *echo.Context) error {
		*runs++
		return c.String(http.StatusOK, answer)
	})
	return httpSite(e, runs, r, end)
}

func bareEcho5(r requests) (site, error) { return echo5Site(r, nothing) }

func lockkeeperEcho5(r requests) (site, error) {
	limiter, end, err := newLimiter(r)
	if err != nil {
		return site{}, err
	}
	return echo5Site(r, end, ratelimit.New(limiter, echov5mw.ByHeader(clientField)))
}

func ownEcho5(r requests) (site, error) {
	return echo5Site(r, nothing, middleware.RateLimiterWithConfig(middleware.RateLimiterConfig{
		IdentifierExtractor: func(c *echo.Context) (string, error) { return c.Request().Header.Get(clientField), nil },
		Store: middleware.NewRateLimiterMemoryStoreWithConfig(middleware.RateLimiterMemoryStoreConfig{
			Rate: limit / 1000, Burst: limit, // the period is a thousand seconds
		}),
	}))
}

func onceEcho5(r requests) (site, error) {
	g, end, err := newGuard()
	if err != nil {
		return site{}, err
	}
	return echo5Site(r, end, idempotency.New(g, echov5mw.ScopeBy(echov5mw.ByHeader(clientField))))
}
