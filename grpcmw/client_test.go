package grpcmw_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
)

// keys is a service that records the idempotency keys of its calls.
type keys struct {
	service
	seen []string
}

func recordingKeys() *keys {
	k := &keys{}
	k.make = func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		values := metadata.ValueFromIncomingContext(ctx, "idempotency-key")
		if len(values) != 1 {
			values = []string{"none, or several"}
		}
		k.seen = append(k.seen, values[0])
		return &things.Thing{Text: "made"}, nil
	}
	return k
}

// A call that is refused twice behind its guard is repeated under its key, not before the server's
// delay, and runs once; the next call has a key of its own.
func TestCallRefusedTwiceRunsOnce(t *testing.T) {
	const pause = 50 * time.Millisecond
	var (
		s    service
		keys []string
		at   []time.Time
	)
	st := rpctest.NewStore(t)
	limiter := rpctest.NewLimiter(t, st, rpctest.Plenty)
	refuses := grpcmw.Interceptors{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		keys = append(keys, metadata.ValueFromIncomingContext(ctx, "idempotency-key")...)
		if at = append(at, time.Now()); len(at) <= 2 {
			ok(t, limiter.Hold(ctx, "global", pause))
		}
		return handler(ctx, req)
	}}
	addr := listen(t, &s, refuses, idempotency.New(rpctest.NewGuard(t, st), grpcmw.Unscoped(), policy.Required()), ratelimit.New(limiter, grpcmw.Global()))
	client := dial(t, addr, retrying, grpc.WithUnaryInterceptor(idempotency.UnaryClientInterceptor()))
	thing, err := client.Make(t.Context(), &things.MakeRequest{})
	is(t, thing, err, "run 1")
	thing, err = client.Make(t.Context(), &things.MakeRequest{})
	is(t, thing, err, "run 2")
	if len(keys) != 4 || keys[0] != keys[1] || keys[1] != keys[2] || keys[2] == keys[3] || len(keys[0]) < 22 {
		t.Fatalf("keys %q", keys)
	}
	for n := range 2 {
		if d := at[n+1].Sub(at[n]); d < pause {
			t.Errorf("attempt %d was %v after the one before", n+2, d)
		}
	}
}

func TestKeyOfTheCallerIsKept(t *testing.T) {
	k := recordingKeys()
	client := dial(t, listen(t, &k.service), grpc.WithUnaryInterceptor(idempotency.UnaryClientInterceptor()))
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-other", "stays")
	if _, err := client.Make(idempotency.WithKey(ctx, `my "key" \ 1`), &things.MakeRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Make(t.Context(), &things.MakeRequest{RequestId: "id"}); err != nil {
		t.Fatal(err)
	}
	if k.seen[0] != `"my \"key\" \\ 1"` || k.seen[1] != "none, or several" {
		t.Errorf("keys %q", k.seen)
	}
	if _, err := client.Get(t.Context(), &things.GetRequest{}); err != nil {
		t.Fatal(err)
	}
}

// A call that a client of this module repeats runs once on a server of this module.
func TestARepeatedCallRunsOnce(t *testing.T) {
	var s service
	st := rpctest.NewStore(t)
	addr := listen(t, &s, idempotency.New(rpctest.NewGuard(t, st), grpcmw.Unscoped(), policy.Required()))
	lost := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if err := invoker(ctx, method, req, reply, cc, opts...); err != nil || s.runs.Load() > 1 {
			return err
		}
		return invoker(ctx, method, req, reply, cc, opts...) // the first answer is lost
	}
	client := dial(t, addr, grpc.WithChainUnaryInterceptor(idempotency.UnaryClientInterceptor(), lost))
	thing, err := client.Make(t.Context(), &things.MakeRequest{})
	is(t, thing, err, "run 1")
	s.ran(t, 1)
}

func TestCallWaitsForItsToken(t *testing.T) {
	var s service
	limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.Per(1, 50*time.Millisecond))
	addr := listen(t, &s)
	client := dial(t, addr, grpc.WithUnaryInterceptor(ratelimit.UnaryClientInterceptor(limiter, grpcmw.ByMethod())))
	start := time.Now()
	for range 3 {
		if _, err := client.Make(t.Context(), &things.MakeRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(start); took < 100*time.Millisecond {
		t.Errorf("three calls took %v", took)
	}
	if _, err := client.Get(t.Context(), &things.GetRequest{}); err != nil || time.Since(start) > 10*time.Second {
		t.Errorf("another method: %v", err)
	}

	slow := rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.PerHour(1))
	client = dial(t, addr, grpc.WithUnaryInterceptor(ratelimit.UnaryClientInterceptor(slow, grpcmw.Global())))
	if _, err := client.Make(t.Context(), &things.MakeRequest{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := client.Make(ctx, &things.MakeRequest{})
	if status.Code(err) != codes.ResourceExhausted || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a token after the deadline: %v", err)
	}
	leaving, leave := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, leave)
	if _, err := client.Make(leaving, &things.MakeRequest{}); status.Code(err) != codes.Canceled {
		t.Errorf("a cancelled call: %v", err)
	}
	s.ran(t, 5)
}

func TestPacingWithoutAStore(t *testing.T) {
	var s service
	st := rpctest.NewStore(t)
	addr := listen(t, &s)
	limiter := rpctest.NewLimiter(t, st, tokenbucket.PerMinute(1))
	st.Break(storetest.TakeTokens, storetest.Down)
	client := dial(t, addr, grpc.WithUnaryInterceptor(ratelimit.UnaryClientInterceptor(limiter, grpcmw.Global())))
	_, err := client.Make(t.Context(), &things.MakeRequest{})
	denies(t, err, policy.ReducedCapacity)
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	client = dial(t, addr, grpc.WithUnaryInterceptor(ratelimit.UnaryClientInterceptor(limiter, grpcmw.Global(), policy.FailOpen())))
	for range 2 {
		if _, err := client.Make(t.Context(), &things.MakeRequest{}); err != nil {
			t.Error(err)
		}
	}
	s.ran(t, 2)
}

// A refused token of a client within a handler is no refusal of the call that the handler serves,
// so that a guard keeps its answer.
func TestPacingInsideAHandler(t *testing.T) {
	var inner, outer service
	limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.PerHour(1))
	backend := dial(t, listen(t, &inner), grpc.WithUnaryInterceptor(ratelimit.UnaryClientInterceptor(limiter, grpcmw.Global())))
	outer.make = func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		if _, ok := guard.FromContext(ctx); !ok {
			return nil, errors.New("not guarded")
		}
		for {
			short, cancel := context.WithTimeout(ctx, patience)
			_, err := backend.Make(short, &things.MakeRequest{})
			cancel()
			if err != nil {
				return &things.Thing{Text: "paced"}, nil //nolint:nilerr // as the test requires
			}
		}
	}
	client := serve(t, &outer, idempotency.New(rpctest.NewGuard(t, rpctest.NewStore(t)), grpcmw.ScopeBy(grpcmw.ByContext(userKey{}))))
	for range 2 {
		var header, trailer metadata.MD
		thing, err := client.Make(with(t, "x-user", "u", "idempotency-key", "k"), &things.MakeRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
		is(t, thing, err, "paced")
		if len(trailer.Get("grpc-retry-pushback-ms")) > 0 {
			t.Errorf("trailer %v", trailer)
		}
	}
	outer.ran(t, 1)
}

func TestStreamsArePaced(t *testing.T) {
	var s service
	limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.Per(1, 50*time.Millisecond))
	addr := listen(t, &s)
	talk := func(opts ...policy.RPCClientOption) time.Duration {
		client := dial(t, addr, grpc.WithStreamInterceptor(ratelimit.StreamClientInterceptor(limiter, grpcmw.ByMethod(), opts...)))
		start := time.Now()
		for range 2 {
			if n, err := rpctest.SendMessages(t.Context(), t, tableClient{client}, 3); n != 3 || !errors.Is(err, io.EOF) {
				t.Fatalf("%d messages, %v", n, err)
			}
		}
		return time.Since(start)
	}
	if took := talk(); took < 50*time.Millisecond {
		t.Errorf("two streams took %v", took)
	}
	if took := talk(ratelimit.PerMessage()); took < 250*time.Millisecond {
		t.Errorf("six messages took %v", took)
	}
}

// timedOut is a store whose server does not reply in time.
type timedOut struct{ store.Buckets }

func (timedOut) TakeTokens(context.Context, store.TokenRequest, ...store.TokenRequest) (store.TakeReply, error) {
	return store.TakeReply{}, fmt.Errorf("%w: no reply in time: %w", store.ErrUnavailable, context.DeadlineExceeded)
}

// A timeout of the store is an outage, and no timeout of the call.
func TestClientWhoseStoreTimesOut(t *testing.T) {
	limiter := must(tokenbucket.New(timedOut{}, "psp", tokenbucket.PerSecond(1)))
	k := recordingKeys()
	for want, opts := range map[codes.Code][]policy.RPCClientOption{
		codes.Unavailable: nil,
		codes.OK:          {policy.FailOpen(), policy.Logger(slog.New(slog.DiscardHandler))},
	} {
		client := dial(t, listen(t, &k.service), grpc.WithUnaryInterceptor(ratelimit.UnaryClientInterceptor(limiter, grpcmw.Global(), opts...)))
		if _, err := client.Make(t.Context(), &things.MakeRequest{}); status.Code(err) != want {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// A message that is not sent ends its stream, on the server too, though the caller does not
// receive.
func TestRefusedMessageEndsItsStream(t *testing.T) {
	ended := make(chan error, 1)
	s := service{talk: func(stream grpc.BidiStreamingServer[things.MakeRequest, things.Thing]) error {
		_ = must(stream.Recv())
		_ = stream.Send(&things.Thing{})
		_, err := stream.Recv()
		ended <- err
		return err
	}}
	limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.PerDay(1))
	client := dial(t, listen(t, &s), grpc.WithStreamInterceptor(ratelimit.StreamClientInterceptor(limiter, grpcmw.Global(), ratelimit.PerMessage())))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	stream := must(client.Talk(ctx))
	ok(t, stream.Send(&things.MakeRequest{}))
	_ = must(stream.Recv()) // or the stream could end before the server has it
	if err := stream.Send(&things.MakeRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if status.Code(err) != codes.Canceled {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the server still waits for a message")
	}
}
