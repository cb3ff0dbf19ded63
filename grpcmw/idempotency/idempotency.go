// Package idempotency has calls with the same idempotency key run once and answered alike, as gRPC
// interceptors:
//
//	idempotency.New(orders, grpcmw.ScopeBy(grpcmw.ByContext(userKey{})), policy.Required())
//
// It stands behind authentication and authorisation, so that nobody is replayed what they may no
// longer see, and before locks and concurrency limits, so that a replay needs neither. Its client
// interceptor puts a key on calls.
package idempotency

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/rpc"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

const (
	keyMetadata      = "idempotency-key"
	replayedMetadata = "idempotency-replayed"
	statusMetadata   = "idempotency-status"
)

// New returns interceptors that run the handler once for each scope and idempotency key, and give its
// answer to whoever sends the same call again. The key is in the metadata idempotency-key, a
// structured-field String, quoted or bare, of 1 to 255 printable characters; or in the request's field
// request_id (AIP-155), which [KeyField] can change. Which call it is for is a fingerprint of the
// method and the request.
//
// What a client sees:
//
//   - the handler's answer, the first time;
//   - the same message, or the same status with its details, after that, with the same header and
//     trailer metadata, and idempotency-replayed: true in the header;
//   - ABORTED with RetryInfo while the first call runs;
//   - INVALID_ARGUMENT if the key was used for another call; if it is malformed, given several times,
//     or missing where it is required; or if the call has no scope;
//   - FAILED_PRECONDITION if the answer was not kept: it was larger than the guard keeps
//     (guard.WithMaxResult), or no protobuf message; or if an attempt died, or panicked, and may have
//     had effects. The ErrorInfo tells them apart;
//   - UNAVAILABLE with RetryInfo if the store is unavailable. With policy.RunUnprotected the handler
//     runs unguarded instead, and the answer's header has "idempotency-status: bypassed".
//
// The answer is recorded before it is sent, and sent even if it could not be recorded; the recording
// then goes on in the background, and grpcmw.OnError is told. Answers with OK, and errors that would
// be the same again, are kept; [KeepCodes] and [ReleaseCodes] say which.
//
// Methods that are declared with option idempotency_level = NO_SIDE_EFFECTS are left alone, which
// needs the generated code of the service in the program. A stream cannot be replayed: one that
// carries a key, or any if a key is required, is refused with INVALID_ARGUMENT, unless [PassStreams].
//
// The handler's context is the attempt's: guard.FromContext finds the attempt in it. That the client
// leaves, or cancels, does not end it, and the handler runs to its end; the call's deadline does. If
// the handler panics, the attempt is settled and the panic goes on.
//
// Requests are protobuf messages. The fingerprint of one with unknown fields, or of one that two
// versions of its generated code write otherwise, may differ between versions of a server, which then
// takes a repeat for another call, and refuses it.
//
// Options are policy.Required, policy.RunUnprotected, [KeyField], [KeepCodes], [ReleaseCodes],
// [PassStreams], grpcmw.Unless, grpcmw.OnError and [Deny]. New panics if the guard is nil or the scope
// is the zero value.
func New(g *guard.Guard, scope grpcmw.ScopeFunc, opts ...policy.RPCIdempotencyOption) grpcmw.Interceptors {
	i := newInterceptor("New", g, scope, opts)
	return grpcmw.Interceptors{Unary: i.unary, Stream: i.stream}
}

// UnaryServerInterceptor is what [New] returns for unary calls.
func UnaryServerInterceptor(g *guard.Guard, scope grpcmw.ScopeFunc, opts ...policy.RPCIdempotencyOption) grpc.UnaryServerInterceptor {
	return newInterceptor("UnaryServerInterceptor", g, scope, opts).unary
}

// StreamServerInterceptor is what [New] returns for streams: it guards none, and refuses those that
// ask for it.
func StreamServerInterceptor(g *guard.Guard, scope grpcmw.ScopeFunc, opts ...policy.RPCIdempotencyOption) grpc.StreamServerInterceptor {
	return newInterceptor("StreamServerInterceptor", g, scope, opts).stream
}

type interceptor struct {
	decider  middleware.Idempotency
	maxData  int
	scope    grpcmw.ScopeFunc
	settings setting.RPCIdempotency
	hooks    rpc.Hooks
}

func newInterceptor(name string, g *guard.Guard, scope grpcmw.ScopeFunc, opts []policy.RPCIdempotencyOption) *interceptor {
	if g == nil {
		panic("idempotency: " + name + ": nil guard")
	}
	if scope.IsZero() {
		panic("idempotency: " + name + ": no scope; use grpcmw.ScopeBy or grpcmw.Unscoped")
	}
	settings := setting.ForRPCIdempotency(opts)
	return &interceptor{
		decider:  middleware.Idempotency{Guard: g, RunUnprotected: settings.RunUnprotected},
		maxData:  g.MaxResult(),
		scope:    scope,
		settings: settings,
		hooks:    rpc.HooksOf("idempotency", settings.Common),
	}
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := grpcmw.NewCall(ctx, info.FullMethod, req)
	if i.hooks.Skips(call) || rpc.HasNoSideEffects(info.FullMethod) {
		return handler(ctx, req)
	}
	key, denial := i.readKey(ctx, req)
	switch {
	case denial != nil:
		return nil, i.hooks.Deny(call, *denial)
	case key == "":
		return handler(ctx, req)
	}
	scope, err := i.scope.Of(call)
	if err != nil {
		return nil, i.refuse(call, middleware.NoKey(err))
	}
	fingerprint, err := fingerprint(info.FullMethod, req)
	if err != nil {
		return nil, i.refuse(call, policy.Denial{Reason: policy.InternalError, Err: err})
	}
	x := &exchange{interceptor: i, call: call, req: req, handler: handler}
	i.decider.Serve(ctx, guard.Operation{Scope: scope, Key: key, Fingerprint: fingerprint}, x)
	return x.resp, x.err
}

// refuse returns the error of a call that has no scope, or no fingerprint.
func (i *interceptor) refuse(call *grpcmw.Call, d policy.Denial) error {
	middleware.Fail(call.Context(), d)
	return i.hooks.Deny(call, d)
}

// exchange is a middleware.GuardedExchange of a unary call.
type exchange struct {
	interceptor *interceptor
	call        *grpcmw.Call
	req         any
	handler     grpc.UnaryHandler
	resp        any
	err         error
}

func (x *exchange) Run(ctx context.Context) middleware.Outcome {
	ctx, metadata := capture(ctx)
	x.resp, x.err = x.handler(ctx, x.req)
	a := answerOf(x.resp, x.err)
	a.header, a.trailer = metadata.recorded()
	outcome := middleware.Outcome{Ending: x.interceptor.ending(a.code), Status: int(a.code)}
	if data := a.encode(); len(data) <= x.interceptor.maxData {
		outcome.Data = data
	}
	return outcome
}

func (x *exchange) Replay(result *guard.Result) error {
	a, err := decodeAnswer(result.Data)
	if err != nil {
		return err
	}
	resp, err := a.message()
	if err != nil {
		return err
	}
	ctx := x.call.Context()
	a.header.Set(replayedMetadata, "true")
	_ = grpc.SetHeader(ctx, a.header) // fails only for a call that is not a server's
	_ = grpc.SetTrailer(ctx, a.trailer)
	x.resp, x.err = resp, a.error()
	return nil
}

func (x *exchange) Bypass() {
	ctx := x.call.Context()
	rpc.SetHeader(ctx, statusMetadata, "bypassed")
	x.resp, x.err = x.handler(ctx, x.req)
}

func (x *exchange) Deny(d policy.Denial) { x.err = x.interceptor.hooks.Deny(x.call, d) }

func (x *exchange) Report(err error) { x.interceptor.hooks.Report(x.call, err) }

// ending says whether an answer is for those who ask again, too.
func (i *interceptor) ending(code codes.Code) middleware.Ending {
	if keep, ok := i.settings.Keep[uint32(code)]; ok {
		if keep {
			return middleware.Final
		}
		return middleware.Refused
	}
	switch code {
	case codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted, codes.Aborted:
		return middleware.Refused
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.DataLoss:
		return middleware.Failed
	default:
		return middleware.Final
	}
}

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	stream, call := rpc.NewStream(ss, info)
	if i.settings.PassStreams || i.hooks.Skips(call) || rpc.HasNoSideEffects(info.FullMethod) ||
		!i.settings.Required && len(keyValues(ss.Context())) == 0 {
		return handler(srv, stream)
	}
	return i.hooks.Deny(call, policy.Denial{
		Reason: policy.StreamRefused,
		Detail: fmt.Sprintf("%s is a stream, which is not protected by an idempotency key.", info.FullMethod),
	})
}
