package connectmw

import (
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Option is an option of every interceptor of this module.
type Option interface{ setting.RPCOption }

// Unless makes an interceptor skip the calls for which skip returns true.
func Unless(skip func(call *Call) bool) Option {
	return setting.Given("connectmw: Unless", skip, func(s *setting.Settings) { s.Skip = skip })
}

// OnDeny makes an interceptor refuse calls with the error that deny returns, which should be a
// *connect.Error. The handler does not run. [ErrorOf] makes the error that is returned without this
// option; in an error that wraps it, [DenialOf] finds the denial, whose Reason says which policy
// refused, and why.
//
// Whatever deny returns, the answer has the Retry-After of the denial ([ErrorOf]).
func OnDeny(deny func(call *Call, d policy.Denial) error) Option {
	return setting.Given("connectmw: OnDeny", deny, func(s *setting.Settings) { s.Deny = deny })
}

// OnError makes an interceptor call report with errors of the server's side: the store was
// unavailable, a key function failed, a lock was lost while the handler ran, an answer could not be
// recorded yet. Denials are no errors, and a rate limit that fails open reports nothing. Without
// this option, interceptors outside this one find the error behind a refusal by errors.Is, and
// other errors are dropped. A client never sees them.
//
// The call's goroutine calls report, before or after the handler, so it must be quick.
func OnError(report func(call *Call, err error)) Option {
	return setting.Given("connectmw: OnError", report, func(s *setting.Settings) { s.Report = report })
}
