// Package ratelimit limits the rate of calls of each key, as an interceptor for connect-go:
//
//	connect.WithInterceptors(ratelimit.New(limiter, connectmw.ByContext(userKey{})))
//
// Its interceptor for clients limits what a client sends, and obeys the limits of its servers.
//
// The mechanism behind it is a token bucket: package [tokenbucket].
package ratelimit

import (
	"context"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// New returns an interceptor that takes one token of the call's key, and answers without the
// handler if there is none:
//
//   - resource_exhausted over the limit, with RetryInfo, and QuotaFailure that names the limit.
//     Callers of one key that are refused at the same time are given delays one after the other, as
//     tokens come: the last at most 20 s after the first. While the key is held (policy.Hold,
//     tokenbucket.Limiter's Hold), until that ends, with QuotaFailure that names the limiter;
//   - invalid_argument if the client has not sent the key, or one of more than 1,024 bytes;
//   - unavailable with RetryInfo if the store is unavailable, unless the option policy.FailOpen
//     lets such calls pass;
//   - internal if the application has not provided the key, which is logged once (policy.Logger),
//     if the key function fails, or if the same limiter is in the chain twice with the same key.
//
// connectmw.ErrorOf has the details. A stream takes one token when it begins, whatever is sent on
// it, unless the option [PerMessage] says otherwise.
//
// If the limits of a call's key are not enforced (tokenbucket.Limiter's SetEnforcement), the call
// passes, and no metadata tells of it. A call without a key, or with one of more than 1,024 bytes,
// passes unless those of all keys are enforced. Calls that would have been denied are counted as
// with policy.Shadow.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.RetryJitter, policy.Shadow,
// policy.Hold, [PerMessage], [Costs], [ChargeCodes], connectmw.Unless, connectmw.OnError and
// connectmw.OnDeny, and those of package policy for every middleware. New panics if limiter or key
// is nil, and if PerMessage is combined with Costs or ChargeCodes.
func New(limiter *tokenbucket.Limiter, key connectmw.KeyFunc, opts ...policy.RPCRateLimitOption) connect.Interceptor {
	i := newInterceptor(limiter, key, opts)
	return &adapter.Server{Package: "ratelimit", Unary: i.unary, Stream: i.stream}
}

// PerMessage makes a stream take a token for each message that the client sends: the one at its
// beginning is for the first message, and the others are taken as messages arrive. When there is
// none left, the handler's Receive returns the refusal, now and from then on; a handler that returns
// it ends the stream with it. The refusal has RetryInfo, and no Retry-After (connectmw.ErrorOf).
// PerMessage says nothing of unary calls.
func PerMessage() policy.RPCRateLimitOption {
	return setting.Func(func(s *setting.Settings) { s.PerMessage = true })
}

type interceptor struct {
	decider    middleware.RateLimit
	key        connectmw.KeyFunc
	hooks      adapter.Hooks
	asks       bool // for more than a token
	settles    bool
	costs      func(*connectmw.Call) tokenbucket.Cost
	charged    map[int]bool // the codes that are charged, nil for all
	perMessage bool
	status     bool
}

func newInterceptor(limiter *tokenbucket.Limiter, key connectmw.KeyFunc, opts []policy.RPCRateLimitOption) *interceptor {
	if limiter == nil {
		panic("ratelimit: New: nil limiter")
	}
	if key == nil {
		panic("ratelimit: New: nil key")
	}
	settings := setting.Of(opts)
	i := &interceptor{
		decider:    middleware.NewRateLimit(limiter, settings),
		key:        key,
		hooks:      adapter.HooksOf("ratelimit", settings),
		asks:       middleware.Asks(&settings),
		settles:    middleware.Settles(&settings),
		costs:      setting.Hook[func(*connectmw.Call) tokenbucket.Cost]("ratelimit", settings.Costs),
		charged:    settings.Charged,
		perMessage: settings.PerMessage,
		status:     settings.StatusHeaders && !settings.Shadow,
	}
	i.decider.Order = middleware.NewRetryOrder()
	if i.settles && i.perMessage {
		panic("ratelimit: New: PerMessage with Costs or ChargeCodes, which settle a stream as a whole")
	}
	return i
}

func (i *interceptor) unary(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (resp connect.AnyResponse, err error) {
	call := connectmw.NewCall(ctx, req)
	err = i.serve(call, func(ctx context.Context, _ string) (err error) {
		resp, err = next(ctx, req)
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (i *interceptor) stream(ctx context.Context, conn connect.StreamingHandlerConn, next connect.StreamingHandlerFunc) error {
	stream, call := adapter.NewStream(ctx, conn)
	return i.serve(call, func(ctx context.Context, key string) error {
		if !i.perMessage || key == "" {
			return next(ctx, stream)
		}
		return next(ctx, &charged{Stream: stream, interceptor: i, call: call, key: key})
	})
}

// serve calls a handler with the key that was charged, which is empty for a call that is skipped,
// or returns the error of a call that is refused.
func (i *interceptor) serve(call *connectmw.Call, handler func(ctx context.Context, key string) error) error {
	ctx := call.Context()
	if i.hooks.Skips(call) {
		return handler(ctx, "")
	}
	key, err := i.key(call)
	visit, denial := i.decider.Begin(ctx, adapter.Address(call.Header()), call.Spec().Procedure, key)
	if denial != nil {
		return i.hooks.Deny(call, *denial)
	}
	defer visit.End()
	ask := i.ask(call)
	denial, bypassed := i.check(call, key, err, ask)
	if denial != nil {
		return i.hooks.Deny(call, *denial)
	}
	if bypassed && i.status {
		call.ResponseHeader().Set("Ratelimit-Status", "bypassed")
	}
	if ask == nil || !ask.Reserved() {
		return handler(ctx, key)
	}
	return i.settle(ctx, ask, func(ctx context.Context) error { return handler(ctx, key) })
}

// check returns the denial of a call that is refused, or whether the call passes without the store.
func (i *interceptor) check(
	call *connectmw.Call, key string, keyErr error, ask *middleware.Ask,
) (denial *policy.Denial, bypassed bool) {
	var decision tokenbucket.Decision
	denial, verdict := i.decider.Check(call.Context(), key, keyErr, ask, &decision)
	if verdict != middleware.Shadowed {
		return denial, verdict == middleware.Bypassed && decision.Enforced()
	}
	if middleware.IsFailure(*denial) {
		i.hooks.Report(call, denial.Err)
	}
	return nil, false
}

// charged is a stream whose messages are charged, but for the first, which has been.
type charged struct {
	*adapter.Stream
	interceptor *interceptor
	call        *connectmw.Call
	key         string
	begun       bool
	refusal     error
}

// Receive takes the token for a message when it is there: waiting for one costs nothing.
func (s *charged) Receive(m any) error {
	if s.refusal != nil {
		return s.refusal
	}
	if err := s.Stream.Receive(m); err != nil {
		return err
	}
	if s.begun {
		if denial, _ := s.interceptor.check(s.call, s.key, nil, s.interceptor.ask(s.call)); denial != nil {
			s.refusal = s.interceptor.hooks.Interrupt(s.call, *denial)
		}
	}
	s.begun = true
	return s.refusal
}
