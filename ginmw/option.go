package ginmw

import (
	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Option is an option of every gin middleware of this module.
type Option interface{ setting.HTTPOption }

// Unless makes a middleware skip the requests for which skip returns true.
func Unless(skip func(c *gin.Context) bool) Option { return httpmw.Unless("ginmw", skip) }

// OnError makes a middleware call report with errors that do not decide the answer: a request ran
// without the store (policy.RunUnprotected, or FailOpen of concurrency), a lock was lost while the
// handler ran, an answer could not be recorded yet, or the store was unavailable and the request
// was refused. A rate limit that fails open reports nothing. Without this option such errors are
// logged, at most once a minute, by policy.Logger or slog.Default. They are never among the errors
// of gin's Context, which middleware outside may render.
//
// The request's goroutine calls report, before or after the handler, so it must be quick. After the
// handler it is not called, and nothing is logged, if the request's context is over: behind a
// timeout middleware that has returned, gin may have reused its context for another request.
func OnError(report func(c *gin.Context, err error)) Option { return httpmw.OnError("ginmw", report) }

// OnDeny makes deny answer the refusals of a middleware, instead of a problem body. The chain has
// been aborted, and the header fields of the refusal are set; deny writes status and body. The
// denial's Reason says which policy refused, and why.
func OnDeny(deny func(c *gin.Context, d policy.Denial)) Option {
	return setting.Given("ginmw: OnDeny", deny, func(s *setting.Settings) { s.Deny = deny })
}
