package concurrency_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/concurrency"
)

func get(app *fiber.App, path string) string {
	resp, err := app.Test(httptest.NewRequest(http.MethodGet, path, nil), fiber.TestConfig{})
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// Four reports of a tenant at a time, on all instances together. Up to ten more wait, for up to two
// seconds.
func Example_atMostFourAtATime() {
	reports, err := semaphore.New(memstore.New(), "reports", 4, semaphore.WithMaxWaiting(10))
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Get("/reports/:tenant", concurrency.New(reports, fibermw.ByParam("tenant"), policy.Wait(2*time.Second)),
		func(c fiber.Ctx) error { return c.SendString("the report of " + c.Params("tenant")) })
	fmt.Println(get(app, "/reports/acme"))
	// Output: the report of acme
}

// A bulkhead: this process resizes two pictures at a time, so that a burst of requests does not
// slow its other handlers.
func Example_bulkhead() {
	pictures, err := semaphore.New(memstore.New(), "pictures", 2) // in memory: it counts this process alone
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Get("/pictures/:id", concurrency.New(pictures, fibermw.Global(), policy.Wait(time.Second)),
		func(c fiber.Ctx) error {
			permit, _ := semaphore.FromContext(c.Context()) // c itself has none
			return c.SendString(fmt.Sprintf("a permit of weight %d", permit.Weight()))
		})
	fmt.Println(get(app, "/pictures/7"))
	// Output: a permit of weight 1
}
