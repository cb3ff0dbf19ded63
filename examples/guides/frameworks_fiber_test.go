package guides_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func onFiber(limiter *tokenbucket.Limiter, carts *lock.Locker) *fiber.App {
	app := fiber.New()
	app.Use(ratelimit.New(limiter, fibermw.ByClientIP(clientip.Direct())))
	app.Put("/carts/:id", exclusive.New(carts, fibermw.ByParam("id")), func(c fiber.Ctx) error {
		_, held := lock.FromContext(c.Context()) // c itself has no lease
		return c.SendString(fmt.Sprint("filled, with the lock: ", held))
	})
	return app
}

func servedByFiber(t *testing.T, limiter *tokenbucket.Limiter, carts *lock.Locker) (url string) {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	app := onFiber(limiter, carts)
	done := make(chan error, 1)
	go func() { done <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		if err := app.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String()
}
