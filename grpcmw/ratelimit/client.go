package ratelimit

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
)

// UnaryClientInterceptor paces a client's calls: each waits for a token of its key, in the order of
// tokenbucket.Limiter's Wait, and is then sent. It is not sent, and fails,
//
//   - with RESOURCE_EXHAUSTED if the token would come after the call's deadline;
//   - with the code of the context's error if that ends first;
//   - with UNAVAILABLE if the limiter's store is unavailable, unless policy.FailOpen;
//   - with INVALID_ARGUMENT or INTERNAL if the key function finds no key, or fails.
//
// Behind an interceptor that repeats calls, each attempt is paced. The key function gets the
// client's call: grpcmw.ByMethod, ByField, ByContext and Global are of use; metadata and peer are
// those of a call that the client itself is serving.
//
// It panics if limiter or key is nil.
func UnaryClientInterceptor(limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts ...policy.RPCRateLimitOption) grpc.UnaryClientInterceptor {
	i := newInterceptor("UnaryClientInterceptor", limiter, key, opts)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		call := grpcmw.NewCall(ctx, method, req)
		if !i.hooks.Skips(call) {
			key, err := i.key(call)
			if err := i.wait(ctx, call, key, err); err != nil {
				return err
			}
		}
		return invoker(ctx, method, req, reply, cc, opts...)
	}
}

// StreamClientInterceptor paces a client's streams as [UnaryClientInterceptor] does calls: each
// waits for a token when it begins, and with [PerMessage] also when it sends, from the second
// message on.
func StreamClientInterceptor(limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts ...policy.RPCRateLimitOption) grpc.StreamClientInterceptor {
	i := newInterceptor("StreamClientInterceptor", limiter, key, opts)
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		call := grpcmw.NewStreamCall(ctx, method, func() (any, error) { return nil, errNoRequest })
		if i.hooks.Skips(call) {
			return streamer(ctx, desc, cc, method, opts...)
		}
		key, err := i.key(call)
		if err := i.wait(ctx, call, key, err); err != nil {
			return nil, err
		}
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil || !i.perMessage {
			return stream, err
		}
		return &paced{ClientStream: stream, interceptor: i, call: call, key: key}, nil
	}
}

var errNoRequest = errors.New("grpcmw: a client's stream has no request when it begins")

// paced is a client's stream whose messages wait, but for the first, which has.
type paced struct {
	grpc.ClientStream
	interceptor *interceptor
	call        *grpcmw.Call
	key         string
	begun       bool
}

func (s *paced) SendMsg(m any) error {
	if s.begun {
		if err := s.interceptor.wait(s.Context(), s.call, s.key, nil); err != nil {
			return err
		}
	}
	s.begun = true
	return s.ClientStream.SendMsg(m)
}

// wait returns the error of a call that is not to be sent.
func (i *interceptor) wait(ctx context.Context, call *grpcmw.Call, key string, keyErr error) error {
	if keyErr != nil || key == "" {
		return i.hooks.Refusal(call, i.decider.NoKey(ctx, keyErr))
	}
	err := i.decider.Limiter.Wait(ctx, key)
	switch {
	case err == nil:
		i.decider.Decided(ctx)
		return nil
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return i.hooks.Refusal(call, policy.Denial{Reason: policy.KeyMalformed, Err: err})
	case i.decider.Passes(ctx, err):
		return nil
	case errors.Is(err, store.ErrUnavailable):
		return i.hooks.Refusal(call, policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: time.Second, Err: err})
	case errors.Is(err, context.DeadlineExceeded): // the limiter's, for a wait that is too long
		return i.hooks.Refusal(call, policy.Denial{
			Reason: policy.QuotaExceeded, ViolatedPolicies: []string{i.decider.Limiter.Name()},
			Detail: "The call would have to wait for longer than it has time.", Err: err,
		})
	default:
		return i.hooks.Refusal(call, policy.Denial{Reason: policy.InternalError, Err: err})
	}
}
