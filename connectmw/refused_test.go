package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

// locked returns interceptors that refuse calls for the thing 1 until it is released.
func locked(t *testing.T, opts ...policy.ExclusiveOption) (chain connect.Interceptor, let func()) {
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
	"a status": {connectmw.OnDeny(func(*connectmw.Call, policy.Denial) error { return failure(connect.CodePermissionDenied, "busy") })},
	"an error": {connectmw.OnDeny(func(*connectmw.Call, policy.Denial) error { return errBusy })},
}

func TestRefusalOfAnInnerCall(t *testing.T) {
	chain, _ := locked(t)
	part := func(ctx context.Context) error {
		_, err := chain.WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
			t.Error("the part runs")
			return connect.NewResponse(&things.Thing{}), nil
		})(ctx, connect.NewRequest(&things.MakeRequest{Id: "1"}))
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
			if err := call(ctx); codeOf(err) != connect.CodeAborted {
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
	between := map[string]connect.Interceptor{
		"nothing": around(func(ctx context.Context, handler func(context.Context) error) error { return handler(ctx) }),
		"wraps": around(func(ctx context.Context, handler func(context.Context) error) error {
			err := handler(ctx)
			if err != nil {
				err = fmt.Errorf("wrapped: %w", err)
			}
			return err
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
					var header http.Header
					if _, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "1"}, intoHeader(&header)); err == nil || replayed(header) {
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
		for _, answer := range []error{nil, failure(connect.CodeAborted, "charged, but not shipped"), failure(connect.CodeUnavailable, "later")} {
			var s service
			chain, _ := locked(t, opts...)
			charges := 0
			client := serve(t, &s, idempotency.New(newGuard(t, newStore(t)), byUser), swallowing(func(ctx context.Context, handler func(context.Context) error) error {
				if err := handler(ctx); err == nil {
					t.Error("it is not refused")
				}
				charges++
				return answer
			}), chain)
			for range 3 {
				if _, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "1"}); codeOf(err) != codeOf(answer) {
					t.Errorf("%v", err)
				}
			}
			if charges != 1 {
				t.Errorf("%s, %v: %d charges", hook, answer, charges)
			}
		}
	}
}

// swallowing is an interceptor of unary calls with an answer of its own.
func swallowing(f func(ctx context.Context, handler func(context.Context) error) error) connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			err := f(ctx, func(ctx context.Context) error {
				_, err := next(ctx, req)
				return err
			})
			if err != nil {
				return nil, err
			}
			return connect.NewResponse(&things.Thing{Text: "charged"}), nil
		}
	})
}
