package ratelimit_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// get returns the status of the answer.
func get(app *fiber.App, path string) int {
	resp, err := app.Test(httptest.NewRequest(http.MethodGet, path, nil), fiber.TestConfig{})
	if err != nil {
		panic(err)
	}
	return resp.StatusCode
}

// A burst of two for each client address.
func Example_perClientAddress() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(100).Burst(2))
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Use(ratelimit.New(limiter, fibermw.ByClientIP(clientip.Direct())))
	app.Get("/", func(c fiber.Ctx) error { return c.SendString("hello") })

	fmt.Println(get(app, "/"), get(app, "/"), get(app, "/"))
	// Output: 200 200 429
}

// Behind a load balancer, the address is that which the balancer reports, whatever fiber's
// Config.ProxyHeader says.
func Example_behindALoadBalancer() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	balancers := clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))
	app := fiber.New()
	app.Use(ratelimit.New(limiter, fibermw.ByClientIP(balancers)))
}

// A limit for each user and another for each tenant, and health checks that count for neither.
func Example_perUserAndTenant() {
	store := memstore.New()
	users, err := tokenbucket.New(store, "user", tokenbucket.Limits{
		tokenbucket.PerSecond(5).Named("burst"),
		tokenbucket.PerDay(1000).Named("daily"),
	})
	if err != nil {
		panic(err)
	}
	tenants, err := tokenbucket.New(store, "tenant", tokenbucket.PerSecond(100))
	if err != nil {
		panic(err)
	}
	health := fibermw.Unless(func(c fiber.Ctx) bool { return c.Path() == "/health" })
	app := fiber.New()
	app.Use(
		ratelimit.New(users, fibermw.ByContext("user"), health),
		ratelimit.New(tenants, fibermw.ByContext("tenant"), health, policy.FailOpen()),
	)
	app.Get("/health", func(c fiber.Ctx) error { return c.SendStatus(http.StatusNoContent) })
	fmt.Println(get(app, "/health"))
	// Output: 204
}

// A request costs the tokens of its answer, for which an estimate is reserved until they are known.
func ExampleCosts() {
	limiter, err := tokenbucket.New(memstore.New(), "llm", tokenbucket.Limits{
		tokenbucket.PerDay(1_000).Named("requests"), tokenbucket.PerDay(90_000).Named("tokens"),
	})
	if err != nil {
		panic(err)
	}
	estimate := func(fiber.Ctx) tokenbucket.Cost { return tokenbucket.Cost{"requests": 1, "tokens": 2_000} }
	app := fiber.New()
	app.Use(ratelimit.New(limiter, fibermw.Global(), ratelimit.Costs(estimate)))
	app.Get("/", func(c fiber.Ctx) error {
		if reservation, ok := tokenbucket.FromContext(c.Context()); ok { // c itself has none
			_ = reservation.Use("tokens", 80)
		}
		return c.SendString("hello")
	})

	fmt.Println(get(app, "/"))
	d, err := limiter.Peek(context.Background(), "global")
	if err != nil {
		panic(err)
	}
	for _, l := range d.Limits() {
		fmt.Println(l.Capacity-l.Remaining, l.Name)
	}
	// Output:
	// 200
	// 1 requests
	// 80 tokens
}

// Only attempts to log in that fail count.
func Example_logins() {
	limiter, err := tokenbucket.New(memstore.New(), "login", tokenbucket.PerHour(2))
	if err != nil {
		panic(err)
	}
	app := fiber.New()
	app.Use(ratelimit.New(limiter, fibermw.ByClientIP(clientip.Direct()), policy.ChargeStatus(http.StatusUnauthorized)))
	app.Get("/right", func(c fiber.Ctx) error { return c.SendStatus(http.StatusNoContent) })
	app.Get("/wrong", func(fiber.Ctx) error { return fiber.ErrUnauthorized })

	fmt.Println(get(app, "/right"), get(app, "/right"), get(app, "/right"))
	fmt.Println(get(app, "/wrong"), get(app, "/wrong"), get(app, "/wrong"), get(app, "/right"))
	// Output:
	// 204 204 204
	// 401 401 429 429
}
