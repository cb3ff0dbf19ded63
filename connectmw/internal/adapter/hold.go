package adapter

import (
	"context"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// holder has calls hold a lock, or a permit, while their handlers run.
type holder struct {
	*middleware.Hold
	key   connectmw.KeyFunc
	tier  func(*connectmw.Call) policy.Tier
	hooks Hooks
}

// Holding returns an interceptor whose calls hold something of their key while their handlers run.
func Holding(hold *middleware.Hold, key connectmw.KeyFunc, s setting.Settings) connect.Interceptor {
	if key == nil {
		panic(hold.Package + ": New: nil key")
	}
	h := &holder{hold, key, setting.Hook[func(*connectmw.Call) policy.Tier](hold.Package, s.Tiers), HooksOf(hold.Package, s)}
	return &Server{Package: hold.Package, Unary: h.unary, Stream: h.stream}
}

func (h *holder) unary(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (resp connect.AnyResponse, err error) {
	call := connectmw.NewCall(ctx, req)
	if h.hooks.Skips(call) {
		return next(ctx, req)
	}
	x := &exchange{holder: h, call: call, err: &err, sample: middleware.FailedSample} // unless the handler returns
	x.run = func(ctx context.Context) bool {
		resp, err = next(ctx, req)
		x.sample = sampleOf(err)
		return !Silent(resp, err)
	}
	h.Serve(ctx, x)
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (h *holder) stream(ctx context.Context, conn connect.StreamingHandlerConn, next connect.StreamingHandlerFunc) (err error) {
	stream, call := NewStream(ctx, conn)
	if h.hooks.Skips(call) {
		return next(ctx, stream)
	}
	h.Serve(ctx, &exchange{holder: h, call: call, err: &err, sample: middleware.StreamedSample, run: func(ctx context.Context) bool {
		err = next(ctx, stream)
		return true // a stream that ends is an answer
	}})
	return err
}

// exchange is a middleware.Exchange in connect.
type exchange struct {
	holder *holder
	call   *connectmw.Call
	run    func(context.Context) (answered bool)
	err    *error // what the interceptor returns
	sample middleware.Sample
	mark   middleware.Mark
}

// sampleOf returns how a handler with this error has ended. The codes are the ones that
// OpenTelemetry's conventions take for errors of a server.
func sampleOf(err error) middleware.Sample {
	switch CodeOf(err) {
	case connect.CodeUnknown, connect.CodeDeadlineExceeded, connect.CodeUnimplemented, connect.CodeInternal, connect.CodeUnavailable,
		connect.CodeDataLoss:
		return middleware.FailedSample
	default:
		return middleware.WorkedSample
	}
}

func (x *exchange) Mark() *middleware.Mark {
	x.mark.ID.Path = x.call.Spec().Procedure
	return &x.mark
}

func (x *exchange) Key() (string, error) { return x.holder.key(x.call) }

func (x *exchange) Tier() policy.Tier { return x.holder.tier(x.call) }

func (x *exchange) Run(ctx context.Context) (answered bool) { return x.run(ctx) }

func (x *exchange) Sample() middleware.Sample { return x.sample }

func (x *exchange) GiveUp(d policy.Denial) { *x.err = x.holder.hooks.GivenUp(x.call, d) }

// Waits does nothing: the server of net/http has read a unary request, and so finds out when its
// client leaves.
func (x *exchange) Waits() {}

func (x *exchange) Bypass() {
	x.call.ResponseHeader().Set(x.holder.Status, "bypassed")
	x.run(x.call.Context())
}

func (x *exchange) Deny(d policy.Denial) { *x.err = x.holder.hooks.Deny(x.call, d) }

func (x *exchange) Report(err error) { x.holder.hooks.Report(x.call, err) }
