package nethttp

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
)

// ScopeFunc returns the owner of a request, for policies where no client may get another's answer.
// It is made by [ScopeBy] or [Unscoped], and is not a KeyFunc: a scope is the caller, a key is the
// operation.
type ScopeFunc struct{ scope keys.Scope[*http.Request] }

// ScopeBy scopes by a key that stands for the authenticated subject, such as
// ScopeBy(ByContext(userKey{})). It should be stable, such as a user's number, and not a credential
// that is renewed, nor a value that the client chooses, such as a header field. Errors of the key
// are answered as for a [KeyFunc]: with status 500 if authentication has provided no subject.
func ScopeBy(key KeyFunc) ScopeFunc { return ScopeFunc{keys.ScopeBy("nethttp", key)} }

// Unscoped puts all requests into one scope: every client that sends the same key and request gets
// the same answer. Use it only where all clients are one party.
func Unscoped() ScopeFunc { return ScopeFunc{keys.Unscoped[*http.Request]()} }

// IsZero reports whether the scope was made by neither [ScopeBy] nor [Unscoped].
func (s ScopeFunc) IsZero() bool { return s.scope.IsZero() }

// Of returns the scope of a request.
func (s ScopeFunc) Of(r *http.Request) (string, error) { return s.scope.Of(r) }
