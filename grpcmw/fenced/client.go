package fenced

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/lockkeeper/lockkeeper/core/lock"
)

// UnaryClientInterceptor sends calls with the fence of the lease that their context derives from:
//
//	lease, err := carts.Lock(ctx, "42")
//	…
//	_, err = client.SaveCart(lease.Context(), cart)
//
// A call that has the metadata called fence.Header is sent as it is, and so is one without a lease.
// Of several leases it is the innermost: where that is not the lock of the resource, set the
// metadata. A client for what no lock protects does without the interceptor.
//
// A lease that is over ends its context, and so the call. If the call was sent all the same, its
// fence is what stops it. Retries send the same fence, wherever they stand in the chain.
func UnaryClientInterceptor() grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoker(withFence(ctx), method, req, reply, cc, opts...)
	}
}

// StreamClientInterceptor sends streams as [UnaryClientInterceptor] does calls, with the fence that
// the lease has when the stream begins.
func StreamClientInterceptor() grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return streamer(withFence(ctx), desc, cc, method, opts...)
	}
}

func withFence(ctx context.Context) context.Context {
	lease, ok := lock.FromContext(ctx)
	if !ok {
		return ctx
	}
	if sent, _ := metadata.FromOutgoingContext(ctx); len(sent.Get(fenceMetadata)) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, fenceMetadata, lease.Fence().String())
}
