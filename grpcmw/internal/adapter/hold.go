package adapter

import (
	"context"

	"google.golang.org/grpc"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// Holder has calls hold a lock, or a permit, while their handlers run.
type Holder struct {
	Hold   *middleware.Hold
	Key    grpcmw.KeyFunc
	Hooks  Hooks
	Status string // the metadata of an answer that ran without
}

// Unary is a grpc.UnaryServerInterceptor.
func (h *Holder) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	call := grpcmw.NewCall(ctx, info.FullMethod, req)
	if h.Hooks.Skips(call) {
		return handler(ctx, req)
	}
	h.Hold.Serve(ctx, &exchange{holder: h, call: call, err: &err, run: func(ctx context.Context) { resp, err = handler(ctx, req) }})
	return resp, err
}

// Stream is a grpc.StreamServerInterceptor.
func (h *Holder) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	stream, call := NewStream(ss, info)
	if h.Hooks.Skips(call) {
		return handler(srv, stream)
	}
	h.Hold.Serve(ss.Context(), &exchange{holder: h, call: call, err: &err, run: func(ctx context.Context) {
		stream.WithContext(ctx)
		err = handler(srv, stream)
	}})
	return err
}

// exchange is a middleware.Exchange in gRPC.
type exchange struct {
	holder *Holder
	call   *grpcmw.Call
	run    func(context.Context)
	err    *error // what the interceptor returns
	mark   middleware.Mark
}

func (x *exchange) Mark() *middleware.Mark {
	x.mark.ID.Path = x.call.FullMethod()
	return &x.mark
}

func (x *exchange) Key() (string, error) { return x.holder.Key(x.call) }

func (x *exchange) Run(ctx context.Context) { x.run(ctx) }

// Waits does nothing: gRPC knows at any time whether the client is there.
func (x *exchange) Waits() {}

func (x *exchange) Bypass() {
	SetHeader(x.call.Context(), x.holder.Status, "bypassed")
	x.run(x.call.Context())
}

func (x *exchange) Deny(d policy.Denial) { *x.err = x.holder.Hooks.Deny(x.call, d) }

func (x *exchange) Report(err error) { x.holder.Hooks.Report(x.call, err) }
