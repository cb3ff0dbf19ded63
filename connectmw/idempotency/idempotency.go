// Package idempotency has calls with the same idempotency key run once and answered alike, as an
// interceptor for connect-go:
//
//	idempotency.New(orders, connectmw.ScopeBy(connectmw.ByContext(userKey{})), policy.Required())
//
// It stands behind authentication and authorisation, so that no answer is replayed to a client that
// may no longer see it, and before locks and concurrency limits, so that a replay needs neither.
// Its interceptor for clients puts a key on calls.
//
// The mechanism behind it is an idempotency guard: package [guard].
package idempotency

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"
	statusHeader   = "Idempotency-Status"
)

// New returns an interceptor that runs the handler once for each scope and idempotency key, and
// gives its answer to every repeat of the call. The key is in the header field Idempotency-Key, a
// structured-field String, quoted or bare, of 1 to 255 printable characters; or in the request's
// field request_id (AIP-155), which [KeyField] can change; or where [KeyFrom] says. Which call it
// is for is a fingerprint of the method and the request, unless [Fingerprint] or policy.KeyAlone
// says otherwise.
//
// What a client sees:
//
//   - the handler's answer, the first time;
//   - the same message, or the same error with its details and metadata, after that, with the same
//     header and trailer, and Idempotency-Replayed: true in the header;
//   - aborted with RetryInfo while the first call runs. With policy.Wait a repeat waits for the
//     answer first, and is given that, or runs if the answer is released; at most 16 of them in a
//     process (policy.MaxWaiting), one more is refused at once;
//   - invalid_argument if the key was used for another call; if it is malformed, given several
//     times, or missing where it is required; or if the client has not sent what scopes the call,
//     or [Fingerprint] refuses it;
//   - internal if the application has not provided the scope, such as the user whom authentication
//     should have put into the context, or if the same guard is in the call's chain twice; both are
//     logged once (policy.Logger);
//   - failed_precondition if the answer was not kept: it was larger than the guard keeps
//     (guard.WithMaxResult, guard.WithMaxScopeBytes), or no protobuf message; or if an attempt
//     died, or panicked, and may have had effects. The ErrorInfo tells them apart. Its metadata has
//     the operation's ID in the latter case, and with aborted, under "operation": by it support
//     finds the operation (guard.Guard's InspectID);
//   - resource_exhausted with RetryInfo if the call is new and its scope has as many records as it
//     may have (guard.WithMaxPerScope), whatever policy.RunUnprotected says;
//   - unavailable with RetryInfo if the store is unavailable. With policy.RunUnprotected the
//     handler runs unguarded instead, and the answer's header has "Idempotency-Status: bypassed".
//
// A call without a key runs unguarded. With policy.Dedupe it is guarded, too: a repeat of the same
// method with the same request, in the same scope, waits for the answer to the first one, for 10 s
// if there is no policy.Wait, and is given it until the window is over. [Fingerprint] counts there,
// too. Streams without a key are not deduplicated.
//
// The answer is recorded before it is sent, and sent even if it could not be recorded; recording it
// is then retried in the background, and connectmw.OnError is called. Which answers are kept and
// which are released, so that the next call runs, is a table in docs/idempotency.md; [KeepCodes]
// and [ReleaseCodes] say otherwise. A refusal by an interceptor of this module behind this one is
// released.
//
// Methods that are declared with option idempotency_level = NO_SIDE_EFFECTS are left alone, which
// generated code tells connect (connect.WithIdempotency). A stream cannot be replayed: one that
// carries a key, or any if a key is required, is refused with invalid_argument, unless
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
// Connect has read a request before interceptors see the call, so there is no policy.MaxBody and no
// policy.MaxBodies: bound the memory of requests with connect.WithReadMaxBytes and the number of
// connections.
//
// Options are policy.Required, policy.Dedupe, policy.Wait, policy.MaxWaiting, policy.MaxRun,
// policy.Retention, policy.StatusHeaders, policy.RunUnprotected, policy.KeyAlone, [KeyFrom],
// [KeyField], [Fingerprint], [KeepCodes], [ReleaseCodes], [PassStreams], connectmw.Unless,
// connectmw.OnError and connectmw.OnDeny, and those of package policy for every middleware. New
// panics if the guard is nil, the scope is the zero value, policy.Retention is less than the
// guard's lease, or options contradict each other.
func New(g *guard.Guard, scope connectmw.ScopeFunc, opts ...policy.RPCIdempotencyOption) connect.Interceptor {
	settings := setting.Of(opts)
	decider := middleware.NewIdempotency(g, settings)
	if scope.IsZero() {
		panic("idempotency: New: no scope; use connectmw.ScopeBy or connectmw.Unscoped")
	}
	if settings.KeyAlone && settings.CallFingerprint != nil {
		panic("idempotency: New: Fingerprint has no effect with policy.KeyAlone")
	}
	i := &interceptor{
		decider:  decider,
		maxData:  g.MaxResult(),
		scope:    scope,
		key:      setting.Hook[connectmw.KeyFunc]("idempotency", settings.Key),
		own:      setting.Hook[func(*connectmw.Call) ([]byte, error)]("idempotency", settings.CallFingerprint),
		settings: settings,
		hooks:    adapter.HooksOf("idempotency", settings),
	}
	return &adapter.Server{Package: "idempotency", Unary: i.unary, Stream: i.stream}
}

type interceptor struct {
	decider  middleware.Idempotency
	maxData  int
	scope    connectmw.ScopeFunc
	key      connectmw.KeyFunc                     // reads the key; nil for header and field
	own      func(*connectmw.Call) ([]byte, error) // stands for the request in the fingerprint; nil for itself
	settings setting.Settings
	hooks    adapter.Hooks
}

func (i *interceptor) unary(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error) {
	call := connectmw.NewCall(ctx, req)
	if i.hooks.Skips(call) || hasNoSideEffects(call) {
		return next(ctx, req)
	}
	key, denial := i.readKey(call, req.Any())
	switch {
	case denial != nil:
		return nil, i.refuse(call, *denial)
	case !i.decider.Guards(key):
		return next(ctx, req)
	}
	scope, err := i.scope.Of(call)
	if err != nil {
		return nil, i.refuse(call, i.decider.NoKey(ctx, err))
	}
	fingerprint, denial := i.fingerprint(call, req.Any())
	if denial != nil {
		return nil, i.refuse(call, *denial)
	}
	x := &exchange{interceptor: i, call: call, req: req, next: next}
	i.decider.Serve(ctx, i.decider.Operation(scope, key, fingerprint), x)
	if x.err != nil {
		return nil, x.err
	}
	return x.resp, nil
}

// hasNoSideEffects reports whether a method is declared so.
func hasNoSideEffects(call *connectmw.Call) bool {
	return call.Spec().IdempotencyLevel == connect.IdempotencyNoSideEffects
}

// refuse returns the error of a call that has no key, no scope, or no fingerprint.
func (i *interceptor) refuse(call *connectmw.Call, d policy.Denial) error {
	middleware.Fail(call.Context(), d)
	return i.hooks.Deny(call, d)
}

// exchange is a middleware.GuardedExchange of a unary call.
type exchange struct {
	interceptor *interceptor
	call        *connectmw.Call
	req         connect.AnyRequest
	next        connect.UnaryFunc
	resp        connect.AnyResponse
	err         error
	mark        middleware.Mark
}

func (x *exchange) Mark() *middleware.Mark {
	x.mark.ID.Path = x.call.Spec().Procedure
	return &x.mark
}

func (x *exchange) Run(ctx context.Context) middleware.Outcome {
	metadata := record(ctx)
	x.resp, x.err = x.next(ctx, x.req)
	var message any
	if x.resp != nil {
		message = x.resp.Any()
	}
	a := answerOf(message, x.err)
	var coded *connect.Error
	errors.As(x.err, &coded)
	a.header, a.trailer = metadata.recorded(x.resp, coded)
	outcome := middleware.Outcome{Ending: x.interceptor.ending(a.code), Status: int(a.code)}
	switch {
	case middleware.NoteOf(ctx).IsError(x.err):
		outcome.Ending = middleware.Refused
	case adapter.Silent(x.resp, x.err):
		outcome.Ending = middleware.Silent
	}
	if coded != nil && coded.Code() != a.code { // no client knows its code
		failure := a.error()
		maps.Copy(failure.Meta(), coded.Meta())
		x.err = failure
	}
	if data := a.encode(); len(data) <= x.interceptor.maxData {
		outcome.Data = data
	} else {
		x.interceptor.decider.TooLarge(ctx, x.call.Spec().Procedure)
	}
	return outcome
}

// replay is the response with a kept message, whose type is not known when this is compiled.
type replay struct {
	*connect.Response[emptypb.Empty]
	message proto.Message
}

func (r *replay) Any() any { return r.message }

func (x *exchange) Replay(result *guard.Result) error {
	a, err := decodeAnswer(result.Data)
	if err != nil {
		return err
	}
	header, trailer := x.call.ResponseHeader(), x.call.ResponseTrailer()
	if a.code != 0 {
		failure := a.error()
		trailer = failure.Meta()
		x.err = failure
	} else {
		message, err := a.message()
		if err != nil {
			return err
		}
		x.resp = &replay{connect.NewResponse(&emptypb.Empty{}), message}
	}
	maps.Copy(header, a.header)
	maps.Copy(trailer, a.trailer)
	header.Set(replayedHeader, "true")
	return nil
}

func (x *exchange) Bypass() {
	x.call.ResponseHeader().Set(statusHeader, "bypassed")
	x.resp, x.err = x.next(x.call.Context(), x.req)
}

func (x *exchange) Unconfirmed() {
	if x.interceptor.settings.StatusHeaders {
		x.call.ResponseHeader().Set(statusHeader, "unconfirmed")
	}
}

func (x *exchange) GiveUp(d policy.Denial) {
	x.resp, x.err = nil, x.interceptor.hooks.GivenUp(x.call, d)
}

func (x *exchange) Deny(d policy.Denial) { x.err = x.interceptor.hooks.Deny(x.call, d) }

func (x *exchange) Report(err error) { x.interceptor.hooks.Report(x.call, err) }

// ending returns whether a repeat gets an answer. The table is in docs/idempotency.md.
func (i *interceptor) ending(code connect.Code) middleware.Ending {
	if keep, ok := i.settings.Keep[int(code)]; ok {
		if keep {
			return middleware.Final
		}
		return middleware.Refused
	}
	switch code {
	case connect.CodeUnauthenticated, connect.CodeResourceExhausted:
		return middleware.Refused
	case connect.CodePermissionDenied, connect.CodeAborted, connect.CodeCanceled, connect.CodeUnknown, connect.CodeDeadlineExceeded,
		connect.CodeInternal, connect.CodeUnavailable, connect.CodeDataLoss:
		return middleware.Failed
	default:
		return middleware.Final
	}
}

func (i *interceptor) stream(ctx context.Context, conn connect.StreamingHandlerConn, next connect.StreamingHandlerFunc) error {
	stream, call := adapter.NewStream(ctx, conn)
	if i.settings.PassStreams || i.hooks.Skips(call) || hasNoSideEffects(call) {
		return next(ctx, stream)
	}
	keyed, denial := i.asksForGuard(call)
	switch {
	case denial != nil:
		return i.refuse(call, *denial)
	case !keyed:
		return next(ctx, stream)
	}
	return i.hooks.Deny(call, policy.Denial{
		Reason: policy.StreamRefused,
		Detail: fmt.Sprintf("%s is a stream, which is not protected by an idempotency key.", call.Spec().Procedure),
	})
}

// asksForGuard reports whether a stream carries a key, or needs one. A denial is that its key
// function fails.
func (i *interceptor) asksForGuard(call *connectmw.Call) (bool, *policy.Denial) {
	switch {
	case i.settings.Required:
		return true, nil
	case i.key == nil:
		return len(call.Header().Values(keyHeader)) > 0, nil
	}
	key, err := i.key(call)
	if err != nil && !errors.Is(err, policy.ErrNoKey) {
		denial := i.decider.NoKey(call.Context(), err)
		return false, &denial
	}
	return err == nil && key != "", nil
}
