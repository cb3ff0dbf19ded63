package idempotency

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/lockkeeper/lockkeeper/grpcmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// UnaryClientInterceptor puts an idempotency key of its own on every call that has none: neither in
// its metadata, see [WithKey], nor in its request's field request_id (AIP-155). Methods that are
// declared with option idempotency_level = NO_SIDE_EFFECTS need none.
//
// The key is that of the call as the caller made it: retries below this interceptor, gRPC's own by
// service config, as in the example, and those of interceptors after it in the chain, send the same
// one, so that a server behind [New] runs the call once. So it is the first in the chain.
//
// A caller that repeats the call itself, such as a job that runs again after a crash, has to send
// the same key with WithKey.
func UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if !adapter.HasNoSideEffects(method) && !hasKey(ctx, req) {
			ctx = WithKey(ctx, naming.NewID())
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}
}

// hasKey reports whether a caller has seen to a call's key.
func hasKey(ctx context.Context, req any) bool {
	sent, _ := metadata.FromOutgoingContext(ctx)
	return len(sent.Get(keyMetadata)) > 0 || stringField(req, "request_id") != ""
}

// WithKey returns a context whose calls carry this idempotency key, 1 to 255 printable ASCII
// characters. It is for one call: two different ones with the same key are refused by the server.
func WithKey(ctx context.Context, key string) context.Context {
	sent, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		sent = metadata.MD{}
	}
	sent.Set(keyMetadata, `"`+escape.Replace(key)+`"`)
	return metadata.NewOutgoingContext(ctx, sent)
}

// escape is that of a structured-field String (RFC 9651, section 3.3.3).
var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
