// Command echo is a shop on echo v5 behind all four policies, in the order in which they belong. With
// echo v4 the import is echomw instead of echov5mw. This file is the part to copy; serve.go runs it.
package main

import (
	"crypto/rand"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/echov5mw/concurrency"
	"github.com/lockkeeper/lockkeeper/echov5mw/exclusive"
	"github.com/lockkeeper/lockkeeper/echov5mw/idempotency"
	"github.com/lockkeeper/lockkeeper/echov5mw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func newShop(st store.Store) *echo.Echo {
	requests := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100).Burst(20)))
	orders := must(guard.New(st, "checkout"))
	carts := must(lock.New(st, "carts"))
	writes := must(semaphore.New(st, "writes", 2))

	user, cart := echov5mw.ByContext("user"), echov5mw.ByParam("id")
	once := idempotency.New(orders, echov5mw.ScopeBy(user), policy.Required())
	oneAtATime := exclusive.New(carts, echov5mw.Join(user, cart), policy.Wait(time.Second))
	twoAtATime := concurrency.New(writes, echov5mw.Global())

	e := echo.New()
	e.Use(ratelimit.New(requests, echov5mw.ByClientIP(clientip.Direct())), authenticate)
	e.PUT("/carts/:id", fill, oneAtATime, twoAtATime)
	e.POST("/carts/:id/checkout", checkout, once, oneAtATime, twoAtATime)
	return e
}

// authenticate stands in for real authentication: it believes the header X-User.
func authenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		user := c.Request().Header.Get("X-User")
		if user == "" {
			return echo.NewHTTPError(http.StatusUnauthorized, "who are you?")
		}
		c.Set("user", user)
		return next(c)
	}
}

func fill(c *echo.Context) error {
	n, err := io.Copy(io.Discard, c.Request().Body) // yours goes here
	if err != nil {
		return echo.NewHTTPError(http.StatusBadRequest, "the cart broke off")
	}
	return c.JSON(http.StatusOK, map[string]any{"cart": c.Param("id"), "bytes": n})
}

func checkout(c *echo.Context) error {
	return c.JSON(http.StatusCreated, map[string]any{"order": rand.Text()}) // yours goes here, and charges
}
