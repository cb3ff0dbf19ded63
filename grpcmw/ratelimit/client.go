package ratelimit

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// UnaryClientInterceptor limits a client's calls, and obeys the limits of their servers. Each call
// waits for a token of its key, in the order of tokenbucket.Limiter's Wait, and is then sent. It is
// not sent, and fails,
//
//   - with RESOURCE_EXHAUSTED if the token would come after the call's deadline, or the key is held
//     until then;
//   - with the code of the context's error if that ends first;
//   - with UNAVAILABLE if the limiter's store is unavailable, unless policy.FailOpen;
//   - with INVALID_ARGUMENT or INTERNAL if the key function finds no key, or fails, and the limits of
//     all keys are enforced (tokenbucket.Limiter's SetEnforcement).
//
// An answer that asks for a pause holds the key: no process that shares the limiter's store sends a
// call of this key until that is over, and others wait; other keys are not affected. Such an answer
// is RESOURCE_EXHAUSTED or UNAVAILABLE with RetryInfo (google.rpc) or the trailer
// grpc-retry-pushback-ms, and any answer but ABORTED with the trailer retry-after, in seconds or as
// a date. The longest of them counts; negative and unreadable ones do not. A key is held
// for 15 min at most, whatever the server says (policy.MaxHold), and before the answer is returned,
// by one call of the store, which lasts for 1 s at most, also beyond the call's deadline. A pause
// that one process has got holds the key for all of them, so the longest of their pauses counts,
// also if the server varies them at random. tokenbucket.Limiter's Reset ends a hold of the store, but
// none of this interceptor's own.
//
// If the store cannot hold a key, or the key has no limits (tokenbucket.Unlimited) or none that are
// enforced, this interceptor alone holds it, for up to 4,096 keys at a time. The failure is logged,
// at most once a minute (policy.Logger). Calls that policy.FailOpen lets pass wait in the same way
// for the end of what this interceptor has learned itself, before the outage too.
//
// It repeats nothing. Behind an interceptor that repeats calls, each attempt takes a token, and
// waits until its key is no longer held. The attempts of gRPC's own retries, by service config, are
// one call here: they take one token, and the last answer holds the key. The key function gets the
// client's call: grpcmw.ByMethod, ByField, ByContext and Global are of use; metadata and peer are
// those of a call that the client itself is serving. Calls of tenants with limits of their own need
// keys of their own.
//
// Options are policy.MaxHold, policy.FailOpen, policy.Logger, policy.MeterProvider,
// policy.ProblemTypes, grpcmw.Unless, grpcmw.OnError and grpcmw.OnDeny. It panics if limiter or key
// is nil.
func UnaryClientInterceptor(
	limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts ...policy.RPCClientOption,
) grpc.UnaryClientInterceptor {
	i := newClient("UnaryClientInterceptor", limiter, key, opts)
	return func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		call := grpcmw.NewCall(ctx, method, req)
		if i.hooks.Skips(call) {
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		key, err := i.key(call)
		if err := i.wait(ctx, call, key, err); err != nil {
			return err
		}
		var trailer metadata.MD
		err = invoker(ctx, method, req, reply, cc, append(slices.Clip(opts), grpc.Trailer(&trailer))...)
		i.learn(ctx, key, err, trailer)
		return err
	}
}

// StreamClientInterceptor limits a client's streams as [UnaryClientInterceptor] does calls: each
// waits for a token when it begins, and with [PerMessage] also when it sends, from the second
// message on. A message that is not sent ends its stream. The answer at its end holds its key, when
// RecvMsg has returned it.
func StreamClientInterceptor(
	limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts ...policy.RPCClientOption,
) grpc.StreamClientInterceptor {
	i := newClient("StreamClientInterceptor", limiter, key, opts)
	return func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		call := grpcmw.NewStreamCall(ctx, method, func() (any, error) { return nil, errNoRequest })
		if i.hooks.Skips(call) {
			return streamer(ctx, desc, cc, method, opts...)
		}
		key, err := i.key(call)
		if err := i.wait(ctx, call, key, err); err != nil {
			return nil, err
		}
		cancel := func() {}
		if i.perMessage {
			ctx, cancel = context.WithCancel(ctx)
		}
		stream, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil {
			i.learn(ctx, key, err, nil)
			cancel()
			return stream, err
		}
		return &paced{ClientStream: stream, client: i, call: call, key: key, cancel: cancel, single: !desc.ServerStreams}, nil
	}
}

var errNoRequest = errors.New("grpcmw: a client's stream has no request when it begins")

// client limits what a client sends.
type client struct {
	limit      *middleware.Outgoing
	key        grpcmw.KeyFunc
	hooks      adapter.Hooks
	perMessage bool
}

func newClient(name string, limiter *tokenbucket.Limiter, key grpcmw.KeyFunc, opts []policy.RPCClientOption) *client {
	if limiter == nil {
		panic("ratelimit: " + name + ": nil limiter")
	}
	if key == nil {
		panic("ratelimit: " + name + ": nil key")
	}
	settings := setting.Of(opts)
	return &client{middleware.NewOutgoing(limiter, settings), key, adapter.HooksOf("ratelimit", settings), settings.PerMessage}
}

// paced is a client's stream. With PerMessage its messages wait, but for the first, which has.
type paced struct {
	grpc.ClientStream
	client *client
	call   *grpcmw.Call
	key    string
	cancel func() // ends the stream, with PerMessage
	single bool   // one message ends it
	begun  bool
	ended  bool
}

// SendMsg ends the stream if it does not send: a caller need not receive after that, and the stream
// would live as long as its connection.

func (s *paced) SendMsg(m any) error {
	if s.begun && s.client.perMessage {
		if err := s.client.wait(s.Context(), s.call, s.key, nil); err != nil {
			s.cancel()
			return err
		}
	}
	s.begun = true
	return s.ClientStream.SendMsg(m)
}

func (s *paced) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if (err != nil || s.single) && !s.ended {
		s.ended = true
		s.client.learn(s.Context(), s.key, err, s.Trailer())
		s.cancel()
	}
	return err
}

// wait returns the error of a call that is not to be sent.
func (i *client) wait(ctx context.Context, call *grpcmw.Call, key string, keyErr error) error {
	if keyErr != nil || key == "" {
		if !i.limit.NeedsKey() {
			return nil
		}
		return i.hooks.Refusal(call, i.limit.NoKey(ctx, keyErr))
	}
	err := i.limit.Wait(ctx, key)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return i.hooks.Refusal(call, policy.Denial{Reason: policy.KeyMalformed, Err: err})
	case errors.Is(err, store.ErrUnavailable):
		return i.hooks.Refusal(call, policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: time.Second, Err: err})
	case errors.Is(err, context.DeadlineExceeded): // the limiter's, for a wait that is too long
		return i.hooks.Refusal(call, policy.Denial{
			Reason: policy.QuotaExceeded, ViolatedPolicies: []string{i.limit.Limiter.Name()},
			Detail: "The call would have to wait for longer than it has time.", Err: err,
		})
	default:
		return i.hooks.Refusal(call, policy.Denial{Reason: policy.InternalError, Err: err})
	}
}

// learn holds the key of a call if its answer asks for that. A refusal by an interceptor of this
// process is no answer.
func (i *client) learn(ctx context.Context, key string, err error, trailer metadata.MD) {
	if _, denied := grpcmw.DenialOf(err); denied || err == nil && len(trailer) == 0 {
		return
	}
	if d := asked(status.Convert(err), trailer); d > 0 {
		i.limit.Hold(ctx, key, d)
	}
}

// asked returns for how long an answer asks for a pause.
func asked(st *status.Status, trailer metadata.MD) (longest time.Duration) {
	switch st.Code() {
	case codes.Aborted: // a conflict of this call alone
		return 0
	case codes.ResourceExhausted, codes.Unavailable:
		for _, detail := range st.Details() {
			if info, ok := detail.(*errdetails.RetryInfo); ok {
				longest = max(longest, info.GetRetryDelay().AsDuration())
			}
		}
		for _, text := range trailer["grpc-retry-pushback-ms"] {
			if n, err := strconv.ParseInt(text, 10, 32); err == nil { // of 32 bits, as gRPC has it
				longest = max(longest, time.Duration(n)*time.Millisecond)
			}
		}
	}
	if values := trailer["retry-after"]; len(values) > 0 {
		d, _ := backoff.RetryAfter(http.Header{"Retry-After": values, "Date": trailer["date"]})
		longest = max(longest, d)
	}
	return longest
}
