// Package ratelimit limits the rate of calls of each key, as gRPC interceptors:
//
//	grpc.NewServer(grpcmw.ServerOptions(ratelimit.New(limiter, grpcmw.ByContext(userKey{})))...)
//
// Its client interceptors limit what a client sends, and obey the limits of its servers.
//
// The mechanism behind it is a token bucket: package [tokenbucket].
package ratelimit

import (
	"context"

	"google.golang.org/grpc"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// New returns interceptors that take one token of the call's key, and answer without the handler if
// there is none:
//
//   - RESOURCE_EXHAUSTED over the limit, with RetryInfo, and QuotaFailure that names the limit.
//     Callers of one key that are refused at the same time are given delays one after the other, as
//     tokens come: the last at most 20 s after the first. While the key is held (policy.Hold,
//     tokenbucket.Limiter's Hold), until that ends, with QuotaFailure that names the limiter;
//   - INVALID_ARGUMENT if the client has not sent the key, or one of more than 1,024 bytes;
//   - UNAVAILABLE with RetryInfo if the store is unavailable, unless the option policy.FailOpen
//     lets such calls pass;
//   - INTERNAL if the application has not provided the key, which is logged once (policy.Logger), if the
//     key function fails, or if the same limiter is in the chain twice with the same key.
//
// grpcmw.StatusOf has the details. A stream takes one token when it begins, whatever is sent on it,
// unless the option [PerMessage] says otherwise.
//
// If the limits of a call's key are not enforced (tokenbucket.Limiter's SetEnforcement), the call
// passes, and no metadata tells of it. A call without a key, or with one of more than 1,024 bytes,
// passes unless those of all keys are enforced. Calls that would have been denied are counted as
// with policy.Shadow.
//
// Options are policy.FailOpen, policy.StatusHeaders, policy.RetryJitter, policy.Shadow,
// policy.Hold, [PerMessage], [Costs], [ChargeCodes], grpcmw.Unless, grpcmw.OnError and
// grpcmw.OnDeny, and those of package policy for every middleware. New panics if limiter or key is
// nil, and if PerMessage is combined with Costs or ChargeCodes.
func New(limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts ...policy.RPCRateLimitOption) grpcmw.Interceptors {
	i := newInterceptor(limiter, key, opts)
	return grpcmw.Interceptors{Unary: i.unary, Stream: i.stream}
}

// Option is an option of interceptors of both sides.
type Option interface {
	policy.RPCRateLimitOption
	policy.RPCClientOption
}

// PerMessage makes a stream take a token for each message that the client sends: the one at its
// beginning is for the first message, and the others are taken as messages arrive. When there is
// none left, the handler's Recv returns the refusal, now and from then on; a handler that returns
// it ends the stream with it. Its trailer keeps the client's gRPC from repeating the stream, whose
// handler has run (grpcmw.StatusOf). PerMessage says nothing of unary calls.
func PerMessage() Option {
	return setting.Func(func(s *setting.Settings) { s.PerMessage = true })
}

type interceptor struct {
	decider    middleware.RateLimit
	key        grpcmw.KeyFunc
	hooks      adapter.Hooks
	asks       bool // for more than a token
	settles    bool
	costs      func(*grpcmw.Call) tokenbucket.Cost
	charged    map[int]bool // the codes that are charged, nil for all
	perMessage bool
	status     bool
}

func newInterceptor(limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts []policy.RPCRateLimitOption) *interceptor {
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
		costs:      setting.Hook[func(*grpcmw.Call) tokenbucket.Cost]("ratelimit", settings.Costs),
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

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := grpcmw.NewCall(ctx, info.FullMethod, req)
	if i.hooks.Skips(call) {
		return handler(ctx, req)
	}
	key, err := i.key(call)
	visit, denial := i.decider.Begin(ctx, adapter.Address(ctx), info.FullMethod, key)
	if denial != nil {
		return nil, i.hooks.Deny(call, *denial)
	}
	defer visit.End()
	ask := i.ask(call)
	if denial := i.check(call, key, err, ask); denial != nil {
		return nil, i.hooks.Deny(call, *denial)
	}
	if ask == nil || !ask.Reserved() {
		return handler(ctx, req)
	}
	var resp any
	err = i.settle(ctx, ask, func(ctx context.Context) (err error) {
		resp, err = handler(ctx, req)
		return err
	})
	return resp, err
}

// check returns the denial of a call that is refused.
func (i *interceptor) check(call *grpcmw.Call, key string, keyErr error, ask *middleware.Ask) *policy.Denial {
	var decision tokenbucket.Decision
	denial, verdict := i.decider.Check(call.Context(), key, keyErr, ask, &decision)
	switch {
	case verdict == middleware.Bypassed && i.status && decision.Enforced():
		adapter.SetHeader(call.Context(), "ratelimit-status", "bypassed")
	case verdict == middleware.Shadowed && middleware.IsFailure(*denial):
		i.hooks.Report(call, denial.Err)
	}
	if denial == nil || verdict == middleware.Shadowed {
		return nil
	}
	return denial
}

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	stream, call := adapter.NewStream(ss, info)
	if i.hooks.Skips(call) {
		return handler(srv, stream)
	}
	key, err := i.key(call)
	visit, denial := i.decider.Begin(ss.Context(), adapter.Address(ss.Context()), info.FullMethod, key)
	if denial != nil {
		return i.hooks.Deny(call, *denial)
	}
	defer visit.End()
	ask := i.ask(call)
	if denial := i.check(call, key, err, ask); denial != nil {
		return i.hooks.Deny(call, *denial)
	}
	switch {
	case i.perMessage:
		return handler(srv, &charged{Stream: stream, interceptor: i, call: call, key: key})
	case ask == nil || !ask.Reserved():
		return handler(srv, stream)
	}
	return i.settle(ss.Context(), ask, func(ctx context.Context) error {
		stream.WithContext(ctx)
		return handler(srv, stream)
	})
}

// charged is a stream whose messages are charged, but for the first, which has been.
type charged struct {
	*adapter.Stream
	interceptor *interceptor
	call        *grpcmw.Call
	key         string
	begun       bool
	refusal     error
}

// RecvMsg takes the token for a message when it is there: waiting for one costs nothing.
func (s *charged) RecvMsg(m any) error {
	if s.refusal != nil {
		return s.refusal
	}
	if err := s.Stream.RecvMsg(m); err != nil {
		return err
	}
	if s.begun {
		if denial := s.interceptor.check(s.call, s.key, nil, s.interceptor.ask(s.call)); denial != nil {
			s.refusal = s.interceptor.hooks.Interrupt(s.call, *denial)
		}
	}
	s.begun = true
	return s.refusal
}
