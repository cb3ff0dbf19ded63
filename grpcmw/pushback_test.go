package grpcmw_test

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
)

const pushback = "grpc-retry-pushback-ms"

// retrying makes a client's gRPC repeat what is refused, up to four times. Without a pushback it
// repeats at once.
var retrying = grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "ABORTED", "UNAVAILABLE", "INVALID_ARGUMENT", "FAILED_PRECONDITION"]}}]}`)

// sent is a grpc.ServerTransportStream that keeps the trailer.
type sent struct {
	grpc.ServerTransportStream
	trailer metadata.MD
}

func (s *sent) SetTrailer(md metadata.MD) error {
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}

// The trailer has the delay of the denial in milliseconds, rounded up, of 32 bits.
func TestPushbackOfADelay(t *testing.T) {
	hooks := adapter.HooksOf("ratelimit", setting.Settings{})
	for delay, want := range map[time.Duration]string{
		0: "-1", 1: "1", time.Millisecond: "1", time.Millisecond + 1: "2", time.Minute: "60000",
		math.MaxInt32 * time.Millisecond: "2147483647", math.MaxInt64: "2147483647",
	} {
		var s sent
		call := grpcmw.NewCall(grpc.NewContextWithServerTransportStream(t.Context(), &s), "/shop.Shop/Checkout", nil)
		_ = hooks.Deny(call, policy.Denial{Reason: policy.QuotaExceeded, RetryAfter: delay})
		if got := s.trailer[pushback]; !slices.Equal(got, []string{want}) {
			t.Errorf("%q, want %q for a delay of %v", got, want, delay)
		}
	}
}

// A refusal has one trailer, also behind other interceptors: clients do not obey several.
func TestRefusalsHaveOnePushback(t *testing.T) {
	outer := rpctest.NewStore(t)
	key := grpcmw.ByMetadata("x-key")
	build := func(name string, st store.Store, by grpcmw.KeyFunc, opts ...setting.RPCOption) grpcmw.Interceptors {
		return rpctest.Policy(t, framework{}, name, st, by, opts...).(grpcmw.Interceptors)
	}
	var chain []grpcmw.Interceptors
	names := []string{"ratelimit", "idempotency", "exclusive", "concurrency"}
	for _, name := range names {
		chain = append(chain, build(name, outer, grpcmw.ByContext(userKey{})))
	}
	again := grpcmw.OnDeny(func(_ *grpcmw.Call, d policy.Denial) error {
		return grpcmw.NewError(d, status.New(codes.DataLoss, "another status"))
	})
	for _, name := range names {
		for _, opts := range [][]setting.RPCOption{nil, {again}} {
			var s service
			st := rpctest.NewStore(t)
			client := serve(t, &s, append(slices.Clip(chain), build(name, st, key, opts...))...)
			refused := func(want string, pairs ...string) {
				t.Helper()
				var trailer metadata.MD
				_, err := client.Make(with(t, append(pairs, "x-user", name, "idempotency-key", "k")...), &things.MakeRequest{}, grpc.Trailer(&trailer))
				if got := trailer[pushback]; err == nil || !slices.Equal(got, []string{want}) {
					t.Errorf("%s: %v with the trailer %q, want %q", name, err, got, want)
				}
			}
			refused("-1")
			st.Break(storetest.Any, storetest.Down)
			refused("1000", "x-key", "a")
			s.ran(t, 0)
		}
	}
}

// A stream that is refused at its beginning is repeated after the server's delay.
func TestRefusedStreamIsRepeated(t *testing.T) {
	const pause = 50 * time.Millisecond
	var s service
	limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), rpctest.Plenty)
	var at []time.Time
	refuses := grpcmw.Interceptors{Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if at = append(at, time.Now()); len(at) == 1 {
			ok(t, limiter.Hold(ss.Context(), "global", pause))
		}
		return handler(srv, ss)
	}}
	client := dial(t, listen(t, &s, refuses, ratelimit.New(limiter, grpcmw.Global())), retrying)
	if n, err := rpctest.SendMessages(t.Context(), t, tableClient{client}, 3); n != 3 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d messages, %v", n, err)
	}
	if len(at) != 2 || at[1].Sub(at[0]) < pause {
		t.Errorf("attempts at %v", at)
	}
}

// No client's gRPC repeats a refusal without a delay, whatever its status, nor one of a call whose
// handler has run, or whose answer has begun.
func TestWhatNoClientRepeats(t *testing.T) {
	call := func(ctx context.Context, client things.ThingsClient) error {
		_, err := client.Make(ctx, &things.MakeRequest{Id: "1"})
		return err
	}
	unavailable := grpcmw.OnDeny(func(*grpcmw.Call, policy.Denial) error { return status.Error(codes.Unavailable, "not now") })
	byKey := grpcmw.ByMetadata("x-key")
	for name, c := range map[string]struct {
		s     *service
		chain func(t *testing.T) []grpcmw.Interceptors
		call  func(context.Context, things.ThingsClient) error
		want  codes.Code
		runs  int64
	}{
		"without a key": {chain: func(t *testing.T) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{exclusive.New(rpctest.NewLocker(t, rpctest.NewStore(t)), byKey)}
		}, want: codes.InvalidArgument},
		"another status": {chain: func(t *testing.T) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{ratelimit.New(rpctest.NewLimiter(t, rpctest.NewStore(t), rpctest.Plenty), byKey, unavailable)}
		}, want: codes.Unavailable},
		"a guarded stream": {chain: func(t *testing.T) []grpcmw.Interceptors {
			return []grpcmw.Interceptors{idempotency.New(rpctest.NewGuard(t, rpctest.NewStore(t)), grpcmw.Unscoped(), policy.Required())}
		}, call: func(ctx context.Context, client things.ThingsClient) error {
			_, err := must(client.Watch(ctx, &things.MakeRequest{})).Recv()
			return err
		}, want: codes.InvalidArgument},
		"a handler that gives up": {
			s: &service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
				lease, _ := lock.FromContext(ctx)
				_ = lease.Unlock(context.WithoutCancel(ctx))
				<-ctx.Done()
				return nil, nil //nolint:nilnil // the mistake
			}},
			chain: func(t *testing.T) []grpcmw.Interceptors {
				return []grpcmw.Interceptors{exclusive.New(rpctest.NewLocker(t, rpctest.NewStore(t)), grpcmw.ByField("id"))}
			}, want: codes.Unavailable, runs: 1},
		"a message over the limit": {
			s: &service{talk: func(stream grpc.BidiStreamingServer[things.MakeRequest, things.Thing]) error {
				for {
					if _, err := stream.Recv(); err != nil {
						return err
					}
				}
			}},
			chain: func(t *testing.T) []grpcmw.Interceptors {
				limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.PerHour(1))
				return []grpcmw.Interceptors{ratelimit.New(limiter, grpcmw.Global(), ratelimit.PerMessage())}
			},
			call: func(ctx context.Context, client things.ThingsClient) error {
				stream := must(client.Talk(ctx))
				for range 2 {
					ok(t, stream.Send(&things.MakeRequest{}))
				}
				_, err := stream.Recv()
				return err
			}, want: codes.ResourceExhausted, runs: 1},
		"an answer with a header": {chain: func(t *testing.T) []grpcmw.Interceptors {
			limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), rpctest.Plenty)
			ok(t, limiter.Hold(t.Context(), "global", time.Minute))
			marks := grpcmw.Interceptors{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				ok(t, grpc.SetHeader(ctx, metadata.Pairs("x-request-id", "1")))
				return handler(ctx, req)
			}}
			return []grpcmw.Interceptors{marks, ratelimit.New(limiter, grpcmw.Global())}
		}, want: codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			attempts := 0
			counts := grpcmw.Interceptors{
				Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					attempts++
					return handler(ctx, req)
				},
				Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
					attempts++
					return handler(srv, ss)
				},
			}
			s := c.s
			if s == nil {
				s = &service{}
			}
			client := dial(t, listen(t, s, append([]grpcmw.Interceptors{counts}, c.chain(t)...)...), retrying)
			send := c.call
			if send == nil {
				send = call
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := send(ctx, client); status.Code(err) != c.want || attempts != 1 {
				t.Errorf("%v after %d attempts, want %v", err, attempts, c.want)
			}
			s.ran(t, c.runs)
		})
	}
}
