package idempotency_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/idempotency"
)

func post(app *fiber.App, key string) (body string, replayed bool) {
	req := httptest.NewRequest(http.MethodPost, "/checkout", strings.NewReader(`{"sku":"tea"}`))
	req.Header.Set("Idempotency-Key", key)
	resp, err := app.Test(req, fiber.TestConfig{})
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	return string(text), resp.Header.Get("Idempotency-Replayed") == "true"
}

func authenticate(c fiber.Ctx) error {
	c.Locals("user", "alice")
	return c.Next()
}

// A checkout that charges once, however often the button is pressed.
func Example_checkout() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	charges := 0
	app := fiber.New()
	app.Use(authenticate)
	app.Post("/checkout", idempotency.New(orders, fibermw.ScopeBy(fibermw.ByContext("user")), policy.Required()),
		func(c fiber.Ctx) error {
			charges++
			return c.Status(http.StatusCreated).SendString(fmt.Sprintf("order %d, replayed:", charges))
		})

	for range 2 {
		fmt.Println(post(app, "8e03978e-40d5-43dd-bc93-6894a57f9324"))
	}
	fmt.Println("charges:", charges)
	// Output:
	// order 1, replayed: false
	// order 1, replayed: true
	// charges: 1
}

// A handler marks where its effects begin.
func Example_markTheEffect() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Use(authenticate)
	app.Post("/checkout", idempotency.New(orders, fibermw.ScopeBy(fibermw.ByContext("user"))), func(c fiber.Ctx) error {
		ctx := c.Context() // c itself has no attempt
		attempt, _ := guard.FromContext(ctx)
		if err := attempt.MarkClean(ctx); err != nil { // nothing has happened yet
			_ = attempt.Abandon(ctx)
			return fiber.ErrServiceUnavailable
		}
		// ... read prices, check the stock ...
		if err := attempt.MarkDirty(ctx); err != nil { // do not charge unless this is recorded
			_ = attempt.Abandon(ctx)
			return fiber.ErrServiceUnavailable
		}
		return c.Status(http.StatusCreated).SendString(fmt.Sprintf("charged in attempt %d", attempt.Number()))
	})
	body, _ := post(app, "k")
	fmt.Println(body)
	// Output: charged in attempt 1
}
