package grpcmw_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
)

// locked returns interceptors that refuse calls for the thing 1 until it is released.
func locked(t *testing.T, opts ...policy.ExclusiveOption) (chain grpcmw.Interceptors, let func()) {
	t.Helper()
	l := newLocker(t, newStore(t))
	lease := must(l.Lock(t.Context(), "1"))
	context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) }) // at the end of the test
	return exclusive.New(l, byID, opts...), func() { _ = lease.Unlock(t.Context()) }
}

var errBusy = errors.New("busy")

// denyHooks are OnDeny hooks.
var denyHooks = map[string][]policy.ExclusiveOption{
	"none":     nil,
	"a status": {grpcmw.OnDeny(func(*grpcmw.Call, policy.Denial) error { return status.Error(codes.PermissionDenied, "busy") })},
	"an error": {grpcmw.OnDeny(func(*grpcmw.Call, policy.Denial) error { return errBusy })},
}

func TestRefusalOfAnInnerCall(t *testing.T) {
	chain, _ := locked(t)
	info := &grpc.UnaryServerInfo{FullMethod: things.Things_Make_FullMethodName}
	part := func(ctx context.Context) error {
		_, err := chain.Unary(ctx, &things.MakeRequest{Id: "1"}, info, func(context.Context, any) (any, error) {
			t.Error("the part runs")
			return nil, nil
		})
		return err
	}
	for name, call := range map[string]func(context.Context) error{
		"called": part,
		"detached": func(ctx context.Context) error {
			done := make(chan error)
			go func() { done <- part(context.WithoutCancel(ctx)) }()
			return <-done
		},
	} {
		var s service
		s.make = func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
			if err := call(ctx); status.Code(err) != codes.Aborted {
				t.Errorf("%s: the part returns %v", name, err)
			}
			return &things.Thing{Text: "charged"}, nil
		}
		client := guarded(t, &s)
		for range 3 {
			thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "1"})
			is(t, thing, err, "charged")
		}
		s.ran(t, 1)
	}
}

func TestRefusalIsNotKept(t *testing.T) {
	between := map[string]grpcmw.Interceptors{
		"nothing": unary(func(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) { return handler(ctx, req) }),
		"wraps": unary(func(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
			resp, err := handler(ctx, req)
			if err != nil {
				err = fmt.Errorf("wrapped: %w", err)
			}
			return resp, err
		}),
	}
	for hook, opts := range denyHooks {
		for name, wrap := range between {
			t.Run(hook+", "+name, func(t *testing.T) {
				var s service
				chain, let := locked(t, opts...)
				g := must(guard.New(newStore(t), "inner"))
				client := serve(t, &s, idempotency.New(newGuard(t, newStore(t)), byUser), idempotency.New(g, byUser), wrap, chain)
				for range 2 {
					var header metadata.MD
					if _, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "1"}, grpc.Header(&header)); err == nil || replayed(header) {
						t.Errorf("%v, replayed %v", err, replayed(header))
					}
				}
				let()
				for range 2 {
					thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "1"})
					is(t, thing, err, "run 1")
				}
				s.ran(t, 1)
			})
		}
	}
}

func TestSwallowedRefusal(t *testing.T) {
	for hook, opts := range denyHooks {
		for _, answer := range []error{nil, status.Error(codes.Aborted, "charged, but not shipped"), status.Error(codes.Unavailable, "later")} {
			var s service
			chain, _ := locked(t, opts...)
			charges := 0
			client := serve(t, &s, idempotency.New(newGuard(t, newStore(t)), byUser), unary(func(ctx context.Context, req any, handler grpc.UnaryHandler) (any, error) {
				if _, err := handler(ctx, req); err == nil {
					t.Error("it is not refused")
				}
				charges++
				return &things.Thing{Text: "charged"}, answer
			}), chain)
			for range 3 {
				if _, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "1"}); status.Code(err) != status.Code(answer) {
					t.Errorf("%v", err)
				}
			}
			if charges != 1 {
				t.Errorf("%s, %v: %d charges", hook, answer, charges)
			}
		}
	}
}
