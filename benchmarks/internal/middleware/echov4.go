package middleware

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/idempotency"
	"github.com/lockkeeper/lockkeeper/echomw/ratelimit"
)

func echo4Site(r requests, end func(), middleware ...echo.MiddlewareFunc) (site, error) {
	runs := new(int)
	e := echo.New()
	e.Use(middleware...)
	e.POST("/orders", func(c echo.Context) error {
		*runs++
		return c.String(http.StatusOK, answer)
	})
	return httpSite(e, runs, r, end)
}

func bareEcho4(r requests) (site, error) { return echo4Site(r, nothing) }

func lockkeeperEcho4(r requests) (site, error) {
	limiter, end, err := newLimiter(r)
	if err != nil {
		return site{}, err
	}
	return echo4Site(r, end, ratelimit.New(limiter, echomw.ByHeader(clientField)))
}

func ownEcho4(r requests) (site, error) {
	return echo4Site(r, nothing, middleware.RateLimiterWithConfig(middleware.RateLimiterConfig{
		IdentifierExtractor: func(c echo.Context) (string, error) { return c.Request().Header.Get(clientField), nil },
		Store: middleware.NewRateLimiterMemoryStoreWithConfig(middleware.RateLimiterMemoryStoreConfig{
			Rate: limit / 1000, Burst: limit, // the period is a thousand seconds
		}),
	}))
}

func onceEcho4(r requests) (site, error) {
	g, end, err := newGuard()
	if err != nil {
		return site{}, err
	}
	return echo4Site(r, end, idempotency.New(g, echomw.ScopeBy(echomw.ByHeader(clientField))))
}
