package grpcmw

import "github.com/lockkeeper/lockkeeper/internal/middleware/keys"

// ScopeFunc returns the owner of a call, for policies where no client may get another's answer. It
// is made by [ScopeBy] or [Unscoped], and is not a KeyFunc: a scope is the caller, a key is the
// operation.
type ScopeFunc struct{ scope keys.Scope[*Call] }

// ScopeBy scopes by a key that stands for the authenticated subject, such as
// ScopeBy(ByContext(userKey{})). It should be stable, such as a user's number, and not a credential
// that is renewed, nor anything that the client chooses, such as metadata. An error of the key is
// answered as [KeyFunc] says: with INTERNAL if authentication has provided no subject.
func ScopeBy(key KeyFunc) ScopeFunc { return ScopeFunc{keys.ScopeBy("grpcmw", key)} }

// Unscoped puts all calls into one scope: every client that sends the same key and request gets the
// same answer. Use it only where all clients are one party.
func Unscoped() ScopeFunc { return ScopeFunc{keys.Unscoped[*Call]()} }

// IsZero reports whether the scope was made by neither [ScopeBy] nor [Unscoped].
func (s ScopeFunc) IsZero() bool { return s.scope.IsZero() }

// Of returns the scope of a call.
func (s ScopeFunc) Of(call *Call) (string, error) { return s.scope.Of(call) }
