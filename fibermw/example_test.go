package fibermw_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
	"github.com/lockkeeper/lockkeeper/fibermw/idempotency"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
)

// A checkout that runs once for each key, one at a time for each cart, behind a limit.
func Example() {
	st := memstore.New() // or redisstore.New(client), for several processes
	defer st.Close()
	limiter := must(tokenbucket.New(st, "api", tokenbucket.PerHour(3)))
	orders := must(guard.New(st, "checkout"))
	carts := must(lock.New(st, "carts"))
	defer carts.Close() //nolint:errcheck // it holds nothing

	runs := 0
	app := fiber.New()
	app.Use(ratelimit.New(limiter, fibermw.Global()))
	app.Post("/carts/:id/checkout",
		idempotency.New(orders, fibermw.Unscoped(), policy.Required()),
		exclusive.New(carts, fibermw.ByParam("id"), policy.Wait(2*time.Second)),
		func(c fiber.Ctx) error {
			runs++
			lease, _ := lock.FromContext(c.Context()) // c itself has none
			return c.Status(http.StatusCreated).SendString(fmt.Sprintf("order %d of cart %s", runs, lease.Key()))
		})

	for _, key := range []string{"a", "a", "", "b"} {
		r := httptest.NewRequest(http.MethodPost, "/carts/42/checkout", nil)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		resp := must(app.Test(r))
		body := string(must(io.ReadAll(resp.Body)))
		if resp.StatusCode != http.StatusCreated {
			body = "a problem" // (RFC 9457)
		}
		fmt.Println(resp.StatusCode, resp.Header.Get("Idempotency-Replayed") != "", body)
	}
	// Output:
	// 201 false order 1 of cart 42
	// 201 true order 1 of cart 42
	// 400 false a problem
	// 429 false a problem
}
