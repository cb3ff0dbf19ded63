package fibermw

import (
	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Option is an option of every fiber v3 middleware of this module.
type Option interface{ setting.HTTPOption }

// Unless makes a middleware skip the requests for which skip returns true.
func Unless(skip func(c fiber.Ctx) bool) Option { return httpmw.Unless("fibermw", skip) }

// OnDeny makes deny answer the refusals of a middleware, instead of a problem body. The handler does
// not run, and the header fields of the refusal are set; deny writes status and body, or returns an
// error for the ErrorHandler. The denial's Reason says which policy refused, and why.
func OnDeny(deny func(c fiber.Ctx, d policy.Denial) error) Option {
	return setting.Given("fibermw: OnDeny", deny, func(s *setting.Settings) { s.Deny = deny })
}

// OnError makes a middleware call report with errors that do not decide the answer: a request ran
// without the store (policy.RunUnprotected, or FailOpen of concurrency), a lock was lost while the
// handler ran, an answer could not be recorded yet, or the store was unavailable and the request
// was refused. A rate limit that fails open reports nothing. Without this option such errors are
// logged, at most once a minute, by policy.Logger or slog.Default.
//
// The request's goroutine calls report, before or after the handler, so it must be quick. After the
// handler it is not called, and nothing is logged, if fiber's timeout middleware has answered.
func OnError(report func(c fiber.Ctx, err error)) Option {
	return httpmw.OnError("fibermw", report)
}
