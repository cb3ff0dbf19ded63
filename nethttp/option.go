package nethttp

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/httpmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Option is an option of every net/http middleware of this module.
type Option interface{ setting.HTTPOption }

// Unless makes a middleware skip the requests for which skip returns true.
func Unless(skip func(r *http.Request) bool) Option { return httpmw.Unless("nethttp", skip) }

// OnDeny makes deny answer the refusals of a middleware, instead of a problem body. The handler
// does not run, and the header fields of the refusal are set; deny writes status and body. The
// denial's Reason says which policy refused, and why.
func OnDeny(deny func(w http.ResponseWriter, r *http.Request, d policy.Denial)) Option {
	return setting.Given("nethttp: OnDeny", deny, func(s *setting.Settings) { s.Deny = deny })
}

// OnError makes a middleware call report with errors of the server's side: the store was
// unavailable, a key function failed, a lock was lost while the handler ran, an answer could not be
// recorded yet. Denials are not errors, and a rate limit that fails open reports nothing. Without
// this option these errors are dropped: net/http has no place for a request's errors, and a client
// never sees them.
//
// The request's goroutine calls report, before or after the handler, so it must be quick.
func OnError(report func(r *http.Request, err error)) Option {
	return httpmw.OnError("nethttp", report)
}
