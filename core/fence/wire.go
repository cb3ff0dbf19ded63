package fence

import "context"

// Header is the header field of a request, and in gRPC, where names are in lower case, its metadata,
// that has the token of whoever sends it, as [Token.String] writes it.
const Header = "Lock-Fence"

// Checker keeps the mark of each resource, and refuses by the rule of [Mark] who is below it. All
// methods may be called concurrently.
//
// redisfence has one for several processes, and memfence one for a single process.
type Checker interface {
	// Check admits a token for the resource that is called key, or refuses it. Nothing keeps a newer
	// token from being admitted between the check and what the caller does then.
	//
	// An error matches [ErrStale], [ErrInvalid], [ErrInvalidKey] or, if nobody knows since the store
	// could not answer, store.ErrUnavailable; or it is the context's. Any other is a mistake of the
	// program's.
	Check(ctx context.Context, key string, t Token) error
}

type contextKey struct{}

// NewContext returns a context with the token that a request came with.
func NewContext(ctx context.Context, t Token) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// FromContext returns the token that the request of ctx came with, and the innermost middleware that
// refuses stale ones let pass. It is the one for the writes of the request's handler: see
// redisfence's Set and sqlfence's Exec.
func FromContext(ctx context.Context) (Token, bool) {
	t, ok := ctx.Value(contextKey{}).(Token)
	return t, ok
}
