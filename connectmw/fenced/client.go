package fenced

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

// NewClient returns an interceptor for clients that sends calls with the fence of the lease that
// their context derives from:
//
//	lease, err := carts.Lock(ctx, "42")
//	…
//	_, err = client.SaveCart(lease.Context(), cart)
//
// A call that has the header field called fence.Header is sent as it is, and so is one without a
// lease. Of several leases it is the innermost: where that is not the lock of the resource, set the
// field. A client for what no lock protects does without the interceptor.
//
// A lease that is over ends its context, and so the call. If the call was sent all the same, its
// fence is what stops it. Retries send the same fence, wherever they stand in the chain.
func NewClient() connect.Interceptor {
	return &adapter.Client{
		Package: "fenced",
		Unary: func(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error) {
			setFence(ctx, req.Header())
			return next(ctx, req)
		},
		Stream: func(ctx context.Context, spec connect.Spec, next connect.StreamingClientFunc) connect.StreamingClientConn {
			return &fencing{StreamingClientConn: next(ctx, spec), ctx: ctx}
		},
	}
}

func setFence(ctx context.Context, header http.Header) {
	if lease, ok := lock.FromContext(ctx); ok && len(header.Values(fence.Header)) == 0 {
		header.Set(fence.Header, lease.Fence().String())
	}
}

// fencing is a stream whose header gets the fence when it is sent, which is with the first message:
// until then the caller may set the field.
type fencing struct {
	connect.StreamingClientConn
	ctx context.Context // that of the stream
	set bool
}

func (f *fencing) Send(m any) error {
	f.fence()
	return f.StreamingClientConn.Send(m)
}

func (f *fencing) CloseRequest() error {
	f.fence()
	return f.StreamingClientConn.CloseRequest()
}

func (f *fencing) fence() {
	if !f.set {
		f.set = true
		setFence(f.ctx, f.RequestHeader())
	}
}
