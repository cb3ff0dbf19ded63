package exclusive_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
)

func put(app *fiber.App, path string) (status int, body string) {
	resp, err := app.Test(httptest.NewRequest(http.MethodPut, path, nil), fiber.TestConfig{})
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	return resp.StatusCode, string(text)
}

// Requests for the same cart run one after the other, and wait for up to two seconds.
func Example_takeTurns() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Put("/carts/:id", exclusive.New(carts, fibermw.ByParam("id"), policy.Wait(2*time.Second)), func(c fiber.Ctx) error {
		ctx := c.Context() // c itself has no lease
		lease, _ := lock.FromContext(ctx)
		// save(ctx, cart, lease.Fence())
		return c.SendString(fmt.Sprintf("cart %s, locked: %t", c.Params("id"), lease.Fence().Number > 0))
	})
	fmt.Println(put(app, "/carts/42"))
	// Output: 200 cart 42, locked: true
}

// Reads take no lock. The middleware stands in the route, since ByParam finds nothing in Use.
func Example_onlyWrites() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.All("/carts/:id", exclusive.New(carts, fibermw.ByParam("id"),
		fibermw.Unless(func(c fiber.Ctx) bool { return c.Method() == http.MethodGet })),
		func(c fiber.Ctx) error { return c.SendStatus(http.StatusNoContent) })
	fmt.Println(put(app, "/carts/42"))
	// Output: 204
}
