package fence

import "context"

// Header is the header field, or in gRPC the metadata in lower case, with the token of a request's
// sender, as written by [Token.String].
const Header = "Lock-Fence"

// Checker keeps the mark of each resource, and refuses tokens by the rule of [Mark]. All methods
// may be called concurrently.
//
// redisfence has one for several processes, and memfence one for a single process.
type Checker interface {
	// Check admits or refuses a token for the resource named key. A newer token may be admitted
	// between the check and the caller's next step.
	//
	// An error matches [ErrStale], [ErrInvalid], [ErrInvalidKey] or, if the store did not reply,
	// store.ErrUnavailable; or it is the context's. Any other is a mistake in the program.
	Check(ctx context.Context, key string, t Token) error
}

type contextKey struct{}

// NewContext returns a context with the token of a request.
func NewContext(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// FromContext returns the token of the request of ctx, as admitted by the innermost middleware that
// refuses stale ones. Use it for the writes of the handler: see redisfence's Set and sqlfence's
// Exec.
func FromContext(ctx context.Context) (Token, bool) {
	t, ok := ctx.Value(contextKey{}).(Token)
	return t, ok
}
