// Package retry repeats gRPC calls that a server has refused for now, when the server says:
//
//	conn, err := grpc.NewClient(addr, grpc.WithChainUnaryInterceptor(
//		idempotency.UnaryClientInterceptor(), // one key for all attempts
//		retry.UnaryClientInterceptor(),
//	))
package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pauses "github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
)

// Option is an option of [UnaryClientInterceptor].
type Option func(*config)

type config struct {
	tries    uint
	maxDelay time.Duration
}

// WithMaxTries sets how often a call is sent at most, the first time included: 4 if not set. It
// panics if n is less than 1.
func WithMaxTries(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("retry: WithMaxTries: %d is less than 1", n))
	}
	return func(c *config) { c.tries = uint(n) }
}

// WithMaxDelay sets the longest delay that is waited for: 30 s if not set. A server that asks for
// more has its refusal returned at once. It panics if d is negative, or less than a millisecond but
// not zero.
func WithMaxDelay(d time.Duration) Option {
	if d != 0 && d < time.Millisecond {
		panic(fmt.Sprintf("retry: WithMaxDelay: %v is neither 0 nor at least 1ms", d))
	}
	return func(c *config) { c.maxDelay = d }
}

// UnaryClientInterceptor sends a call again after an error whose details have a RetryInfo
// (google.rpc), with which a server says that the call may be repeated, and when; those of this
// module say it of calls whose handler has not run. It waits for as long as the RetryInfo says, and
// for a random time more, so that not all clients come back at the same moment: up to half of that
// delay, or 50 ms if that is more, before the second try, and up to twice as much before each
// further one, within [WithMaxDelay] and the call's deadline.
//
// Any other error is returned as it is: without a RetryInfo it is unknown whether a call has run,
// and whether it may run twice. The last error is returned when the tries are used up, and at once
// when the server's delay is too long ([WithMaxDelay]) or would end after the call's deadline.
func UnaryClientInterceptor(opts ...Option) grpc.UnaryClientInterceptor {
	c := config{tries: 4, maxDelay: 30 * time.Second}
	option.Apply(&c, opts)
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		var last error
		tries := 0
		_, err := backoff.Retry(ctx, func() (struct{}, error) {
			last = invoker(ctx, method, req, reply, cc, opts...)
			delay, ok := delayOf(last)
			most := c.maxDelay
			if deadline, ok := ctx.Deadline(); ok {
				most = min(most, time.Until(deadline))
			}
			if !ok || delay > most {
				return struct{}{}, backoff.Permanent(last)
			}
			delay = pauses.Asked(delay, tries, most)
			tries++
			return struct{}{}, &backoff.RetryAfterError{Duration: delay}
		}, backoff.WithMaxTries(c.tries), backoff.WithMaxElapsedTime(0))
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && status.Code(last) != status.FromContextError(ctx.Err()).Code():
			return status.FromContextError(ctx.Err()).Err() // while it waited
		default:
			return last
		}
	}
}

// delayOf returns when a server wants to see a call again.
func delayOf(err error) (time.Duration, bool) {
	if err == nil {
		return 0, false
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			delay := info.GetRetryDelay().AsDuration()
			return delay, delay >= 0
		}
	}
	return 0, false
}
