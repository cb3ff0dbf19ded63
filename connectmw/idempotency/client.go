package idempotency

import (
	"context"
	"strings"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// NewClient returns an interceptor for clients that puts an idempotency key of its own on every
// unary call that has none: neither in its header, see [Key], nor in its request's field request_id
// (AIP-155). Methods that are declared with option idempotency_level = NO_SIDE_EFFECTS need none,
// and streams cannot have one.
//
// The key is that of the call as the caller made it: interceptors after it in the chain, and an
// HTTP client that repeats requests, send the same one, so that a server behind [New] runs the call
// once. So it is the first in the chain.
//
// Connect repeats no call. For the Connect protocol an http.Client whose Transport is that of
// [github.com/lockkeeper/lockkeeper/nethttp/idempotency] does: it obeys Retry-After, and reads a
// request before it sends it, so it is for a client of unary methods alone.
//
// A caller that repeats the call itself, such as a job that runs again after a crash, has to send
// the same key.
func NewClient() connect.Interceptor {
	return &adapter.Client{
		Package: "idempotency",
		Unary: func(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error) {
			if req.Spec().IdempotencyLevel != connect.IdempotencyNoSideEffects && !hasKey(req) {
				req.Header().Set(keyHeader, Key(naming.NewID()))
			}
			return next(ctx, req)
		},
	}
}

// hasKey reports whether a caller has seen to a call's key.
func hasKey(req connect.AnyRequest) bool {
	return len(req.Header().Values(keyHeader)) > 0 || stringField(req.Any(), "request_id") != ""
}

// Key returns the value of the header field Idempotency-Key for a key of 1 to 255 printable ASCII
// characters:
//
//	req.Header().Set("Idempotency-Key", idempotency.Key("checkout of "+cart))
//
// It is for one call: two different ones with the same key are refused by the server.
func Key(key string) string { return `"` + escape.Replace(key) + `"` }

// escape is that of a structured-field String (RFC 9651, section 3.3.3).
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
