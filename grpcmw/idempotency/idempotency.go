// Package idempotency has calls with the same idempotency key run once and answered alike, as gRPC
// interceptors:
//
//	idempotency.New(orders, grpcmw.ScopeBy(grpcmw.ByContext(userKey{})), policy.Required())
//
// It stands behind authentication and authorisation, so that no answer is replayed to a client that
// may no longer see it, and before locks and concurrency limits, so that a replay needs neither.
// Its client interceptor puts a key on calls.
//
// The mechanism behind it is an idempotency guard: package [guard].
package idempotency

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

const (
	keyMetadata      = "idempotency-key"
	replayedMetadata = "idempotency-replayed"
	statusMetadata   = "idempotency-status"
)

// New returns interceptors that run the handler once for each scope and idempotency key, and give
// its answer to every repeat of the call. The key is in the metadata idempotency-key, a
// structured-field String, quoted or bare, of 1 to 255 printable characters; or in the request's
// field request_id (AIP-155), which [KeyField] can change; or where [KeyFrom] says. Which call it
// is for is a fingerprint of the method and the request, unless [Fingerprint] or policy.KeyAlone
// says otherwise.
//
// What a client sees:
//
//   - the handler's answer, the first time;
//   - the same message, or the same status with its details, after that, with the same header and
//     trailer metadata, and idempotency-replayed: true in the header;
//   - ABORTED with RetryInfo while the first call runs. With policy.Wait a repeat waits for the
//     answer first, and is given that, or runs if the answer is released; at most 16 of them in a
//     process (policy.MaxWaiting), one more is refused at once;
//   - INVALID_ARGUMENT if the key was used for another call; if it is malformed, given several
//     times, or missing where it is required; or if the client has not sent what scopes the call,
//     or [Fingerprint] refuses it;
//   - INTERNAL if the application has not provided the scope, such as the user whom authentication
//     should have put into the context, or if the same guard is in the call's chain twice; both are
//     logged once (policy.Logger);
//   - FAILED_PRECONDITION if the answer was not kept: it was larger than the guard keeps
//     (guard.WithMaxResult, guard.WithMaxScopeBytes), or no protobuf message; or if an attempt
//     died, or panicked, and may have had effects. The ErrorInfo tells them apart. Its metadata has
//     the operation's ID in the latter case, and with ABORTED, under "operation": by it support
//     finds the operation (guard.Guard's InspectID);
//   - RESOURCE_EXHAUSTED with RetryInfo if the call is new and its scope has as many records as it
//     may have (guard.WithMaxPerScope), whatever policy.RunUnprotected says;
//   - UNAVAILABLE with RetryInfo if the store is unavailable. With policy.RunUnprotected the
//     handler runs unguarded instead, and the answer's header has "idempotency-status: bypassed".
//
// A call without a key runs unguarded. With policy.Dedupe it is guarded, too: a repeat of the same
// method with the same request, in the same scope, waits for the answer to the first one, for 10 s
// if there is no policy.Wait, and is given it until the window is over. [Fingerprint] counts there,
// too. Streams without a key are not deduplicated.
//
// The answer is recorded before it is sent, and sent even if it could not be recorded; recording it
// is then retried in the background, and grpcmw.OnError is called. Which answers are kept and which
// are released, so that the next call runs, is a table in docs/idempotency.md; [KeepCodes] and
// [ReleaseCodes] say otherwise. A refusal by an interceptor of this module behind this one is
// released.
//
// Methods that are declared with option idempotency_level = NO_SIDE_EFFECTS are left alone, which
// needs the generated code of the service in the program. A stream cannot be replayed: one that
// carries a key, or any if a key is required, is refused with INVALID_ARGUMENT, unless
// [PassStreams].
//
// The handler's context is the attempt's: guard.FromContext finds the attempt in it. That the
// client leaves, or cancels, does not end it, and the handler runs to its end; the call's deadline
// does, and policy.MaxRun (5 minutes if not set) with the cause policy.ErrMaxRun.
// guard.ClientContext ends when the client disconnects. If the handler panics, the attempt is
// settled and the panic continues.
//
// Requests are protobuf messages. The fingerprint of one with unknown fields, or of one that two
// versions of its generated code write otherwise, may differ between versions of a server, which
// then takes a repeat for another call, and refuses it.
//
// gRPC has read a request before interceptors see the call, so there is no policy.MaxBody and no
// policy.MaxBodies: bound the memory of requests with grpc.MaxRecvMsgSize,
// grpc.MaxConcurrentStreams and the number of connections.
//
// Options are policy.Required, policy.Dedupe, policy.Wait, policy.MaxWaiting, policy.MaxRun,
// policy.Retention, policy.StatusHeaders, policy.RunUnprotected, policy.KeyAlone, [KeyFrom],
// [KeyField], [Fingerprint], [KeepCodes], [ReleaseCodes], [PassStreams], grpcmw.Unless,
// grpcmw.OnError and grpcmw.OnDeny, and those of package policy for every middleware. New panics if
// the guard is nil, the scope is the zero value, policy.Retention is less than the guard's lease,
// or options contradict each other.
func New(g *guard.Guard, scope grpcmw.ScopeFunc, opts ...policy.RPCIdempotencyOption) grpcmw.Interceptors {
	settings := setting.Of(opts)
	decider := middleware.NewIdempotency(g, settings)
	if scope.IsZero() {
		panic("idempotency: New: no scope; use grpcmw.ScopeBy or grpcmw.Unscoped")
	}
	if settings.KeyAlone && settings.CallFingerprint != nil {
		panic("idempotency: New: Fingerprint has no effect with policy.KeyAlone")
	}
	i := &interceptor{
		decider:  decider,
		maxData:  g.MaxResult(),
		scope:    scope,
		key:      setting.Hook[grpcmw.KeyFunc]("idempotency", settings.Key),
		own:      setting.Hook[func(*grpcmw.Call) ([]byte, error)]("idempotency", settings.CallFingerprint),
		settings: settings,
		hooks:    adapter.HooksOf("idempotency", settings),
	}
	return grpcmw.Interceptors{Unary: i.unary, Stream: i.stream}
}

type interceptor struct {
	decider  middleware.Idempotency
	maxData  int
	scope    grpcmw.ScopeFunc
	key      grpcmw.KeyFunc                     // reads the key; nil for metadata and field
	own      func(*grpcmw.Call) ([]byte, error) // stands for the request in the fingerprint; nil for itself
	settings setting.Settings
	hooks    adapter.Hooks
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := grpcmw.NewCall(ctx, info.FullMethod, req)
	if i.hooks.Skips(call) || adapter.HasNoSideEffects(info.FullMethod) {
		return handler(ctx, req)
	}
	key, denial := i.readKey(call, req)
	switch {
	case denial != nil:
		return nil, i.refuse(call, *denial)
	case !i.decider.Guards(key):
		return handler(ctx, req)
	}
	scope, err := i.scope.Of(call)
	if err != nil {
		return nil, i.refuse(call, i.decider.NoKey(ctx, err))
	}
	fingerprint, denial := i.fingerprint(call, req)
	if denial != nil {
		return nil, i.refuse(call, *denial)
	}
	x := &exchange{interceptor: i, call: call, req: req, handler: handler}
	i.decider.Serve(ctx, i.decider.Operation(scope, key, fingerprint), x)
	return x.resp, x.err
}

// refuse returns the error of a call that has no key, no scope, or no fingerprint.
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
	mark        middleware.Mark
}

func (x *exchange) Mark() *middleware.Mark {
	x.mark.ID.Path = x.call.FullMethod()
	return &x.mark
}

func (x *exchange) Run(ctx context.Context) middleware.Outcome {
	ctx, metadata := capture(ctx)
	x.resp, x.err = x.handler(ctx, x.req)
	a := answerOf(x.resp, x.err)
	a.header, a.trailer = metadata.recorded()
	outcome := middleware.Outcome{Ending: x.interceptor.ending(a.code), Status: int(a.code)}
	switch {
	case middleware.NoteOf(ctx).IsError(x.err):
		outcome.Ending = middleware.Refused
	case adapter.Silent(x.resp, x.err):
		outcome.Ending = middleware.Silent
	}
	if x.err != nil && !isError(status.Code(x.err)) {
		x.err = a.error() // as a repeat gets it
	}
	if data := a.encode(); len(data) <= x.interceptor.maxData {
		outcome.Data = data
	} else {
		x.interceptor.decider.TooLarge(ctx, x.call.FullMethod())
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
	adapter.SetHeader(ctx, statusMetadata, "bypassed")
	x.resp, x.err = x.handler(ctx, x.req)
}

func (x *exchange) Unconfirmed() {
	if x.interceptor.settings.StatusHeaders {
		adapter.SetHeader(x.call.Context(), statusMetadata, "unconfirmed")
	}
}

func (x *exchange) GiveUp(d policy.Denial) {
	x.resp, x.err = nil, x.interceptor.hooks.GivenUp(x.call, d)
}

func (x *exchange) Deny(d policy.Denial) { x.err = x.interceptor.hooks.Deny(x.call, d) }

func (x *exchange) Report(err error) { x.interceptor.hooks.Report(x.call, err) }

// ending returns whether a repeat gets an answer. The table is in docs/idempotency.md.
func (i *interceptor) ending(code codes.Code) middleware.Ending {
	if keep, ok := i.settings.Keep[int(code)]; ok {
		if keep {
			return middleware.Final
		}
		return middleware.Refused
	}
	switch code {
	case codes.Unauthenticated, codes.ResourceExhausted:
		return middleware.Refused
	case codes.PermissionDenied, codes.Aborted, codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.DataLoss:
		return middleware.Failed
	default:
		return middleware.Final
	}
}

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	stream, call := adapter.NewStream(ss, info)
	if i.settings.PassStreams || i.hooks.Skips(call) || adapter.HasNoSideEffects(info.FullMethod) {
		return handler(srv, stream)
	}
	keyed, denial := i.asksForGuard(call)
	switch {
	case denial != nil:
		return i.refuse(call, *denial)
	case !keyed:
		return handler(srv, stream)
	}
	return i.hooks.Deny(call, policy.Denial{
		Reason: policy.StreamRefused,
		Detail: fmt.Sprintf("%s is a stream, which is not protected by an idempotency key.", info.FullMethod),
	})
}

// asksForGuard reports whether a stream carries a key, or needs one. A denial is that its key
// function fails.
func (i *interceptor) asksForGuard(call *grpcmw.Call) (bool, *policy.Denial) {
	switch {
	case i.settings.Required:
		return true, nil
	case i.key == nil:
		return len(keyValues(call.Context())) > 0, nil
	}
	key, err := i.key(call)
	if err != nil && !errors.Is(err, policy.ErrNoKey) {
		denial := i.decider.NoKey(call.Context(), err)
		return false, &denial
	}
	return err == nil && key != "", nil
}
