package fibermw_test

import (
	"errors"
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"
)

// Around implements mwtest.Natively.
func (framework) Around() map[string]any {
	return map[string]any{
		"recover.New": recover.New(),
		"what renders errors": func(c fiber.Ctx) error {
			if err := c.Next(); err != nil {
				return c.Status(http.StatusPaymentRequired).SendString(err.Error())
			}
			return nil
		},
	}
}

// Ends implements mwtest.Natively.
func (framework) Ends() map[string]any {
	failed := errors.New("failed")
	all := map[string]any{}
	for name, end := range map[string]fiber.Handler{
		"an error":                    func(fiber.Ctx) error { return failed },
		"an error with a status":      func(fiber.Ctx) error { return fiber.NewError(http.StatusPaymentRequired, "failed") },
		"a status":                    func(c fiber.Ctx) error { c.Status(http.StatusAccepted); return nil },
		"a status with its text":      func(c fiber.Ctx) error { return c.SendStatus(http.StatusAccepted) },
		"a redirect":                  func(c fiber.Ctx) error { return c.Redirect().To("/elsewhere") },
		"JSON":                        func(c fiber.Ctx) error { return c.Status(http.StatusCreated).JSON(fiber.Map{"id": 1}) },
		"JSON that cannot be encoded": func(c fiber.Ctx) error { return c.JSON(fiber.Map{"f": func() {}}) },
		"the context's error": func(c fiber.Ctx) error {
			<-c.Context().Done()
			return c.Context().Err()
		},
	} {
		all[name] = end
	}
	return all
}
