package adapter

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// holder has calls hold a lock, or a permit, while their handlers run.
type holder struct {
	*middleware.Hold
	key   grpcmw.KeyFunc
	tier  func(*grpcmw.Call) policy.Tier
	hooks Hooks
}

// Holding returns interceptors whose calls hold something of their key while their handlers run.
func Holding(hold *middleware.Hold, key grpcmw.KeyFunc, s setting.Settings) grpcmw.Interceptors {
	if key == nil {
		panic(hold.Package + ": New: nil key")
	}
	h := &holder{hold, key, setting.Hook[func(*grpcmw.Call) policy.Tier](hold.Package, s.Tiers), HooksOf(hold.Package, s)}
	return grpcmw.Interceptors{Unary: h.unary, Stream: h.stream}
}

func (h *holder) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	call := grpcmw.NewCall(ctx, info.FullMethod, req)
	if h.hooks.Skips(call) {
		return handler(ctx, req)
	}
	x := &exchange{holder: h, call: call, err: &err, sample: middleware.FailedSample} // unless the handler returns
	x.run = func(ctx context.Context) bool {
		resp, err = handler(ctx, req)
		x.sample = sampleOf(err)
		return !Silent(resp, err)
	}
	h.Serve(ctx, x)
	return resp, err
}

func (h *holder) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	stream, call := NewStream(ss, info)
	if h.hooks.Skips(call) {
		return handler(srv, stream)
	}
	h.Serve(ss.Context(), &exchange{holder: h, call: call, err: &err, sample: middleware.StreamedSample, run: func(ctx context.Context) bool {
		stream.WithContext(ctx)
		err = handler(srv, stream)
		return true // a stream that ends is an answer
	}})
	return err
}

// exchange is a middleware.Exchange in gRPC.
type exchange struct {
	holder *holder
	call   *grpcmw.Call
	run    func(context.Context) (answered bool)
	err    *error // what the interceptor returns
	sample middleware.Sample
	mark   middleware.Mark
}

// sampleOf returns how a handler with this error has ended. The codes are the ones that
// OpenTelemetry's conventions take for errors of a server.
func sampleOf(err error) middleware.Sample {
	switch status.Code(err) {
	case codes.Unknown, codes.DeadlineExceeded, codes.Unimplemented, codes.Internal, codes.Unavailable, codes.DataLoss:
		return middleware.FailedSample
	default:
		return middleware.WorkedSample
	}
}

func (x *exchange) Mark() *middleware.Mark {
	x.mark.ID.Path = x.call.FullMethod()
	return &x.mark
}

func (x *exchange) Key() (string, error) { return x.holder.key(x.call) }

func (x *exchange) Tier() policy.Tier { return x.holder.tier(x.call) }

func (x *exchange) Run(ctx context.Context) (answered bool) { return x.run(ctx) }

func (x *exchange) Sample() middleware.Sample { return x.sample }

func (x *exchange) GiveUp(d policy.Denial) { *x.err = x.holder.hooks.GivenUp(x.call, d) }

// Waits does nothing: gRPC knows at any time whether the client is there.
func (x *exchange) Waits() {}

func (x *exchange) Bypass() {
	SetHeader(x.call.Context(), x.holder.Status, "bypassed")
	x.run(x.call.Context())
}

func (x *exchange) Deny(d policy.Denial) { *x.err = x.holder.hooks.Deny(x.call, d) }

func (x *exchange) Report(err error) { x.holder.hooks.Report(x.call, err) }
