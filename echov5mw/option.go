package echov5mw

import (
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Option is an option of every echo v5 middleware of this module.
type Option interface{ setting.HTTPOption }

// Unless makes a middleware skip the requests for which skip returns true.
func Unless(skip func(c *echo.Context) bool) Option { return httpmw.Unless("echov5mw", skip) }

// OnDeny makes deny answer the refusals of a middleware, instead of the HTTPErrorHandler. The
// handler does not run, and the header fields of the refusal are set; deny writes status and body,
// or returns an error for the HTTPErrorHandler. The denial's Reason says which policy refused, and
// why.
func OnDeny(deny func(c *echo.Context, d policy.Denial) error) Option {
	return setting.Given("echov5mw: OnDeny", deny, func(s *setting.Settings) { s.Deny = deny })
}

// OnError makes a middleware call report with errors that it does not return, since they do not
// decide the answer: a request ran without the store (policy.RunUnprotected, or FailOpen of
// concurrency), a lock was lost while the handler ran, an answer could not be recorded yet, an
// OnDeny hook answered for a store that was unavailable. A rate limit that fails open reports
// nothing. Without this option such errors are logged by c.Logger.
//
// The request's goroutine calls report, before or after the handler, so it must be quick. After the
// handler it is not called, and nothing is logged, if the request's context is over: behind a
// timeout middleware that has returned, echo may have reused its context for another request.
func OnError(report func(c *echo.Context, err error)) Option {
	return httpmw.OnError("echov5mw", report)
}
