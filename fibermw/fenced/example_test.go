package fenced_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/fenced"
)

// put returns the status of the answer.
func put(app *fiber.App, path, token string) int {
	r := httptest.NewRequest(http.MethodPut, path, nil)
	if token != "" {
		r.Header.Set(fence.Header, token)
	}
	resp, err := app.Test(r, fiber.TestConfig{})
	if err != nil {
		panic(err)
	}
	return resp.StatusCode
}

// The request of a paused holder arrives after the next holder has written. The handler gets the
// fence, so that the database can compare it again.
func Example_lateRequest() {
	carts, err := memfence.New() // redisfence, where several processes work on the carts
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Put("/carts/:id", fenced.New(carts, fibermw.ByParam("id")), func(c fiber.Ctx) error {
		token, _ := fence.FromContext(c.Context()) // c itself has none
		// save(ctx, cart, token)
		fmt.Printf("cart %s, written with fence %v\n", c.Params("id"), token)
		return c.SendStatus(http.StatusNoContent)
	})
	fmt.Println(put(app, "/carts/42", "34"))
	fmt.Println("the paused holder:", put(app, "/carts/42", "33"))
	fmt.Println("without a lock:", put(app, "/carts/42", ""))
	// Output:
	// cart 42, written with fence 34
	// 204
	// the paused holder: 412
	// without a lock: 428
}

// During a rollout, requests of clients that do not send fences yet pass.
func Example_rollout() {
	carts, err := memfence.New()
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Put("/carts/:id", fenced.New(carts, fibermw.ByParam("id"), policy.AllowUnfenced()), func(c fiber.Ctx) error {
		_, ok := fence.FromContext(c.Context())
		fmt.Println("fenced:", ok)
		return c.SendStatus(http.StatusNoContent)
	})
	fmt.Println(put(app, "/carts/42", "34"))
	fmt.Println(put(app, "/carts/42", ""))
	fmt.Println(put(app, "/carts/42", "33"))
	// Output:
	// fenced: true
	// 204
	// fenced: false
	// 204
	// 412
}
