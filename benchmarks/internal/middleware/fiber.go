package middleware

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/valyala/fasthttp"
)

// fiberSite hands requests to fiber's handler, as its server does.
func fiberSite(r requests, middleware ...any) (site, error) {
	runs := 0
	app := fiber.New()
	if len(middleware) > 0 {
		app.Use(middleware...)
	}
	app.Post("/orders", func(c fiber.Ctx) error {
		runs++
		return c.SendString(answer)
	})
	handler := app.Handler()
	var ctx fasthttp.RequestCtx
	ctx.Request.Header.SetMethod(http.MethodPost)
	ctx.Request.SetRequestURI("/orders")
	ctx.Request.Header.SetContentType("application/json")
	ctx.Request.Header.Set(clientField, client)
	return site{
		call: func(i int) {
			ctx.Response.Reset()
			ctx.ResetUserValues()
			ctx.Request.Header.Set(fiberKeyField, keyOf(r, i))
			ctx.Request.SetBodyString(requestBody)
			handler(&ctx)
		},
		runs:    func() int { return runs },
		headers: func() int { return ctx.Response.Header.Len() },
		end:     func() { _ = app.Shutdown() },
	}, nil
}

func bareFiber(r requests) (site, error) { return fiberSite(r) }

func onceFiber(r requests) (site, error) { return fiberSite(r, idempotency.New()) }
