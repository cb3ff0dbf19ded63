package connectmw

import "github.com/lockkeeper/lockkeeper/internal/middleware/keys"

// ScopeFunc returns the owner of a call, as a [nethttp.ScopeFunc] does. It is made by [ScopeBy] or
// [Unscoped].
type ScopeFunc struct{ scope keys.Scope[*Call] }

// ScopeBy scopes by a key that stands for the authenticated subject, such as
// ScopeBy(ByContext(userKey{})), and that the client does not choose: see [nethttp.ScopeBy].
func ScopeBy(key KeyFunc) ScopeFunc { return ScopeFunc{keys.ScopeBy("connectmw", key)} }

// Unscoped puts all calls into one scope: every client that sends the same key and request gets the
// same answer. Use it only where all clients are one party.
func Unscoped() ScopeFunc { return ScopeFunc{keys.Unscoped[*Call]()} }

// IsZero reports whether the scope was made by neither [ScopeBy] nor [Unscoped].
func (s ScopeFunc) IsZero() bool { return s.scope.IsZero() }

// Of returns the scope of a call.
func (s ScopeFunc) Of(call *Call) (string, error) { return s.scope.Of(call) }
