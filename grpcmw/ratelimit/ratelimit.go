// Package ratelimit limits the rate of calls of each key, as gRPC interceptors:
//
//	grpc.NewServer(grpcmw.ServerOptions(ratelimit.New(limiter, grpcmw.ByContext(userKey{})))...)
//
// Its client interceptors pace a client's own calls by a limiter.
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
//     tokens come: the last at most 20 s after the first;
//   - INVALID_ARGUMENT if the client has not sent the key, or one of more than 1,024 bytes;
//   - UNAVAILABLE with RetryInfo if the store is unavailable, unless the option policy.FailOpen
//     lets such calls pass;
//   - INTERNAL if the application has not provided the key, which is logged once (policy.Logger),
//     or if the key function fails.
//
// grpcmw.StatusOf has the details. A stream takes one token when it begins, whatever is sent on it,
// unless the option [PerMessage] says otherwise.
//
// Options are policy.FailOpen, policy.StatusHeaders, [PerMessage], grpcmw.Unless, grpcmw.OnError
// and grpcmw.OnDeny. New panics if limiter or key is nil.
func New(limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts ...policy.RPCRateLimitOption) grpcmw.Interceptors {
	i := newInterceptor("New", limiter, key, opts)
	return grpcmw.Interceptors{Unary: i.unary, Stream: i.stream}
}

// PerMessage makes a stream take a token for each message that the client sends: the one at its
// beginning is for the first message, and the others are taken as messages arrive. When there is
// none left, the handler's Recv returns the refusal, now and from then on; a handler that returns
// it ends the stream with it. It says nothing of unary calls.
func PerMessage() policy.RPCRateLimitOption {
	return setting.Func(func(s *setting.Settings) { s.PerMessage = true })
}

type interceptor struct {
	decider    middleware.RateLimit
	key        grpcmw.KeyFunc
	hooks      adapter.Hooks
	order      *middleware.RetryOrder
	perMessage bool
	status     bool
}

func newInterceptor(name string, limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts []policy.RPCRateLimitOption) *interceptor {
	if limiter == nil {
		panic("ratelimit: " + name + ": nil limiter")
	}
	if key == nil {
		panic("ratelimit: " + name + ": nil key")
	}
	settings := setting.Of(opts)
	return &interceptor{
		decider:    middleware.NewRateLimit(limiter, settings),
		key:        key,
		hooks:      adapter.HooksOf("ratelimit", settings),
		order:      middleware.NewRetryOrder(),
		perMessage: settings.PerMessage,
		status:     settings.StatusHeaders,
	}
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := grpcmw.NewCall(ctx, info.FullMethod, req)
	if !i.hooks.Skips(call) {
		key, err := i.key(call)
		if err := i.check(call, key, err); err != nil {
			return nil, err
		}
	}
	return handler(ctx, req)
}

// check returns the error of a call that is refused.
func (i *interceptor) check(call *grpcmw.Call, key string, keyErr error) error {
	var decision tokenbucket.Decision
	denial, bypassed := i.decider.Check(call.Context(), key, keyErr, &decision)
	if bypassed && i.status {
		adapter.SetHeader(call.Context(), "ratelimit-status", "bypassed")
	}
	if denial == nil {
		return nil
	}
	if denial.Reason == policy.QuotaExceeded {
		denial.RetryAfter = i.order.Delay(key, denial.Limit)
	}
	return i.hooks.Deny(call, *denial)
}

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	stream, call := adapter.NewStream(ss, info)
	if i.hooks.Skips(call) {
		return handler(srv, stream)
	}
	key, err := i.key(call)
	if err := i.check(call, key, err); err != nil {
		return err
	}
	if i.perMessage {
		return handler(srv, &charged{Stream: stream, interceptor: i, call: call, key: key})
	}
	return handler(srv, stream)
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
		s.refusal = s.interceptor.check(s.call, s.key, nil)
	}
	s.begun = true
	return s.refusal
}
