package fibermw

import (
	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
)

// ScopeFunc returns the owner of a request, as a [nethttp.ScopeFunc] does. It is made by [ScopeBy]
// or [Unscoped].
type ScopeFunc struct{ scope keys.Scope[fiber.Ctx] }

// ScopeBy scopes by a key that stands for the authenticated subject, such as
// ScopeBy(ByContext("user")), and that the client does not choose: see [nethttp.ScopeBy].
func ScopeBy(key KeyFunc) ScopeFunc { return ScopeFunc{keys.ScopeBy("fibermw", key)} }

// Unscoped puts all requests into one scope: every client that sends the same key and request gets
// the same answer. Use it only where all clients are one party.
func Unscoped() ScopeFunc { return ScopeFunc{keys.Unscoped[fiber.Ctx]()} }

// IsZero reports whether the scope was made by neither [ScopeBy] nor [Unscoped].
func (s ScopeFunc) IsZero() bool { return s.scope.IsZero() }

// Of returns the scope of a request.
func (s ScopeFunc) Of(c fiber.Ctx) (string, error) { return s.scope.Of(c) }
