package ratelimit

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// NewClient returns an interceptor for clients that limits their calls, and obeys the limits of
// their servers. Each call waits for a token of its key, in the order of tokenbucket.Limiter's
// Wait, and is then sent. It is not sent, and fails,
//
//   - with resource_exhausted if the token would come after the call's deadline, or the key is held
//     until then;
//   - with the code of the context's error if that ends first;
//   - with unavailable if the limiter's store is unavailable, unless policy.FailOpen;
//   - with invalid_argument or internal if the key function finds no key, or fails, and the limits
//     of all keys are enforced (tokenbucket.Limiter's SetEnforcement).
//
// A stream waits for a token before it begins.
//
// An answer that asks for a pause holds the key: no process that shares the limiter's store sends a
// call of this key until that is over, and others wait; other keys are not affected. Such an answer
// is resource_exhausted or unavailable with RetryInfo (google.rpc) or the metadata
// grpc-retry-pushback-ms, and any answer but aborted with the metadata retry-after, in seconds or
// as a date. The longest of them counts; negative and unreadable ones do not. That of a
// stream is the answer at its end, when Receive has returned it. A key is held for 15 min at most,
// whatever the server says (policy.MaxHold), and before the answer is returned, by one call of the
// store, which lasts for 1 s at most, also beyond the call's deadline. A pause that one process has
// got holds the key for all of them, so the longest of their pauses counts, also if the server
// varies them at random. tokenbucket.Limiter's Reset ends a hold of the store, but none of this
// interceptor's own.
//
// If the store cannot hold a key, or the key has no limits (tokenbucket.Unlimited) or none that are
// enforced, this interceptor alone holds it, for up to 4,096 keys at a time. The failure is logged,
// at most once a minute (policy.Logger). Calls that policy.FailOpen lets pass wait in the same way
// for the end of what this interceptor has learned itself, before the outage too.
//
// It repeats nothing. Behind an interceptor that repeats calls, each attempt takes a token, and
// waits until its key is no longer held. The key function gets the client's call:
// connectmw.ByProcedure, ByContext and Global are of use for all, ByHeader and ByField for unary
// calls. Calls of tenants with limits of their own need keys of their own.
//
// Options are policy.MaxHold, policy.FailOpen, policy.Logger, policy.MeterProvider,
// policy.ProblemTypes, connectmw.Unless, connectmw.OnError and connectmw.OnDeny. It panics if
// limiter or key is nil.
func NewClient(limiter *tokenbucket.Limiter, key connectmw.KeyFunc, opts ...policy.RPCClientOption) connect.Interceptor {
	if limiter == nil {
		panic("ratelimit: NewClient: nil limiter")
	}
	if key == nil {
		panic("ratelimit: NewClient: nil key")
	}
	settings := setting.Of(opts)
	c := &client{middleware.NewOutgoing(limiter, settings), key, adapter.HooksOf("ratelimit", settings)}
	return &adapter.Client{Package: "ratelimit", Unary: c.unary, Stream: c.stream}
}

// client limits what a client sends.
type client struct {
	limit *middleware.Outgoing
	key   connectmw.KeyFunc
	hooks adapter.Hooks
}

func (c *client) unary(ctx context.Context, req connect.AnyRequest, next connect.UnaryFunc) (connect.AnyResponse, error) {
	call := connectmw.NewCall(ctx, req)
	if c.hooks.Skips(call) {
		return next(ctx, req)
	}
	key, err := c.key(call)
	if err := c.wait(ctx, call, key, err); err != nil {
		return nil, err
	}
	resp, err := next(ctx, req)
	if err != nil {
		c.learn(ctx, key, err)
	} else {
		c.learn(ctx, key, nil, resp.Header(), resp.Trailer())
	}
	return resp, err
}

func (c *client) stream(ctx context.Context, spec connect.Spec, next connect.StreamingClientFunc) connect.StreamingClientConn {
	call := connectmw.NewClientStreamCall(ctx, spec, func() (any, error) { return nil, errNoRequest })
	if c.hooks.Skips(call) {
		return next(ctx, spec)
	}
	key, err := c.key(call)
	if err := c.wait(ctx, call, key, err); err != nil {
		return adapter.NewFailed(spec, err)
	}
	return &learning{StreamingClientConn: next(ctx, spec), client: c, ctx: ctx, key: key}
}

var errNoRequest = errors.New("connectmw: a client's stream has no request when it begins")

// learning is a client's stream, at whose end its key may be held.
type learning struct {
	connect.StreamingClientConn
	client *client
	ctx    context.Context // that of the stream
	key    string
	ended  bool
}

func (s *learning) Receive(m any) error {
	err := s.StreamingClientConn.Receive(m)
	if err != nil && !s.ended {
		s.ended = true
		s.client.learn(s.ctx, s.key, err, s.ResponseHeader(), s.ResponseTrailer())
	}
	return err
}

// wait returns the error of a call that is not to be sent.
func (c *client) wait(ctx context.Context, call *connectmw.Call, key string, keyErr error) error {
	if keyErr != nil || key == "" {
		if !c.limit.NeedsKey() {
			return nil
		}
		return c.hooks.Refusal(call, c.limit.NoKey(ctx, keyErr))
	}
	err := c.limit.Wait(ctx, key)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return adapter.Ended(ctx.Err())
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return c.hooks.Refusal(call, policy.Denial{Reason: policy.KeyMalformed, Err: err})
	case errors.Is(err, store.ErrUnavailable):
		return c.hooks.Refusal(call, policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: time.Second, Err: err})
	case errors.Is(err, context.DeadlineExceeded): // the limiter's, for a wait that is too long
		return c.hooks.Refusal(call, policy.Denial{
			Reason: policy.QuotaExceeded, ViolatedPolicies: []string{c.limit.Limiter.Name()},
			Detail: "The call would have to wait for longer than it has time.", Err: err,
		})
	default:
		return c.hooks.Refusal(call, policy.Denial{Reason: policy.InternalError, Err: err})
	}
}

// learn holds the key of a call if its answer asks for that. A refusal by an interceptor of this
// process is no answer.
func (c *client) learn(ctx context.Context, key string, err error, metadata ...http.Header) {
	if _, denied := connectmw.DenialOf(err); denied {
		return
	}
	if d := asked(err, metadata); d > 0 {
		c.limit.Hold(ctx, key, d)
	}
}

// asked returns for how long an answer asks for a pause.
func asked(err error, metadata []http.Header) (longest time.Duration) {
	var failure *connect.Error
	if errors.As(err, &failure) {
		metadata = append(metadata, failure.Meta())
		switch failure.Code() {
		case connect.CodeAborted: // a conflict of this call alone
			return 0
		case connect.CodeResourceExhausted, connect.CodeUnavailable:
			for _, detail := range failure.Details() {
				value, err := detail.Value()
				if info, ok := value.(*errdetails.RetryInfo); ok && err == nil {
					longest = max(longest, info.GetRetryDelay().AsDuration())
				}
			}
			for _, text := range failure.Meta().Values("Grpc-Retry-Pushback-Ms") {
				if n, err := strconv.ParseInt(text, 10, 32); err == nil { // of 32 bits, as gRPC has it
					longest = max(longest, time.Duration(n)*time.Millisecond)
				}
			}
		}
	}
	for _, md := range metadata {
		if md.Get("Retry-After") != "" {
			d, _ := backoff.RetryAfter(md)
			longest = max(longest, d)
		}
	}
	return longest
}
