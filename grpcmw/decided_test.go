package grpcmw_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
)

// unary is an interceptor of another module.
func unary(f func(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error)) grpcmw.Interceptors {
	return grpcmw.Interceptors{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return f(ctx, req, handler)
	}}
}

// odd is an error whose status has a code that gRPC does not know.
type odd struct{ code codes.Code }

func (o odd) Error() string { return "odd" }

func (o odd) GRPCStatus() *status.Status { return status.New(o.code, "odd") }

func TestInvalidCodeIsUnknown(t *testing.T) {
	for _, err := range []error{status.Error(17, "odd"), status.Error(4_000_000_000, "odd"), odd{codes.OK}, odd{99}} {
		s := service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) { return nil, err }}
		client := guarded(t, &s)
		for n := range 3 {
			var header metadata.MD
			_, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, grpc.Header(&header))
			if st := status.Convert(err); st.Code() != codes.Unknown || st.Message() != "odd" || replayed(header) != (n > 0) {
				t.Errorf("time %d: %v, header %v", n, err, header)
			}
		}
		s.ran(t, 1)
	}
}

func TestCleanAttemptIsRetried(t *testing.T) {
	busy := must(status.New(codes.Unavailable, "busy").WithDetails(&errdetails.RetryInfo{}))
	var s service
	shedding := unary(func(ctx context.Context, _ any, _ grpc.UnaryHandler) (any, error) {
		attempt, _ := guard.FromContext(ctx)
		ok(t, attempt.MarkClean(ctx))
		return nil, busy.Err()
	})
	client := serve(t, &s, idempotency.New(newGuard(t, newStore(t)), byUser), shedding)
	for range 2 {
		var header metadata.MD
		_, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, grpc.Header(&header))
		if status.Code(err) != codes.Unavailable || replayed(header) {
			t.Errorf("%v, header %v", err, header)
		}
	}
}

func TestStatusOfAnUnconfirmedAnswer(t *testing.T) {
	for want, opts := range map[string][]policy.RPCIdempotencyOption{"": nil, "unconfirmed": {policy.StatusHeaders()}} {
		var s service
		store := newStore(t)
		client := serve(t, &s, idempotency.New(newGuard(t, store), byUser, opts...))
		store.Break(storetest.SettleOperation, storetest.Down)
		var header metadata.MD
		thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, grpc.Header(&header))
		is(t, thing, err, "run 1")
		if got := header.Get("idempotency-status"); len(got) > 1 || (len(got) == 1) != (want != "") || len(got) == 1 && got[0] != want {
			t.Errorf("header %v, want %q", header, want)
		}
		store.Mend(storetest.Any)
	}
}

func TestHandlerEndsAtMaxRun(t *testing.T) {
	s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		select {
		case <-ctx.Done():
		case <-time.After(patience):
		}
		return &things.Thing{Text: context.Cause(ctx).Error()}, nil
	}}
	client := guarded(t, &s, policy.MaxRun(20*time.Millisecond))
	for range 2 {
		thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
		is(t, thing, err, policy.ErrMaxRun.Error())
	}
	s.ran(t, 1)
}
