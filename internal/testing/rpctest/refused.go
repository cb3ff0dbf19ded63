package rpctest

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

// locked returns interceptors that refuse calls for the thing 1 until it is released.
func locked(t *rig, opts ...policy.ExclusiveOption) (chain Interceptor, let func()) {
	t.Helper()
	l := NewLocker(t, newStore(t))
	lease := must(l.Lock(t.Context(), "1"))
	context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) }) // at the end of the test
	return t.Exclusive(l, t.ByField("id"), opts...), func() { _ = lease.Unlock(t.Context()) }
}

var errBusy = errors.New("busy")

// denyHooks returns OnDeny hooks.
func denyHooks(t *rig) map[string][]policy.ExclusiveOption {
	return map[string][]policy.ExclusiveOption{
		"none":     nil,
		"a status": {t.OnDeny(func(Call, policy.Denial) error { return failure(t, PermissionDenied, "busy") })},
		"an error": {t.OnDeny(func(Call, policy.Denial) error { return errBusy })},
	}
}

func refusalOfAnInnerCall(t *rig) {
	chain, _ := locked(t)
	part := func(ctx context.Context) error {
		return t.Call(ctx, chain, &Request{ID: "1"}, func() { t.Error("the part runs") })
	}
	for name, call := range map[string]func(context.Context) error{
		"called": part,
		"detached": func(ctx context.Context) error {
			done := make(chan error)
			go func() { done <- part(context.WithoutCancel(ctx)) }()
			return <-done
		},
	} {
		var s Service
		s.make = func(ctx context.Context, _ *Request) (*Thing, error) {
			if err := call(ctx); t.CodeOf(err) != Aborted {
				t.Errorf("%s: the part returns %v", name, err)
			}
			return &Thing{Text: "charged"}, nil
		}
		client := guarded(t, &s)
		for range 3 {
			thing, err := client.Make(keyed(t, "k"), &Request{ID: "1"})
			is(t, thing, err, "charged")
		}
		s.ran(t, 1)
	}
}

func refusalIsNotKept(t *rig) {
	between := map[string]Interceptor{
		"nothing": t.Around(func(ctx context.Context, handler func(context.Context) error) error { return handler(ctx) }),
		"wraps": t.Around(func(ctx context.Context, handler func(context.Context) error) error {
			err := handler(ctx)
			if err != nil {
				err = fmt.Errorf("wrapped: %w", err)
			}
			return err
		}),
	}
	for hook, opts := range denyHooks(t) {
		for name, wrap := range between {
			t.Run(hook+", "+name, func(t *rig) {
				var s Service
				chain, let := locked(t, opts...)
				g := must(guard.New(newStore(t), "inner"))
				client := serve(t, &s, t.Idempotency(NewGuard(t, newStore(t)), byUser(t)), t.Idempotency(g, byUser(t)), wrap, chain)
				for range 2 {
					var header http.Header
					if _, err := client.Make(keyed(t, "k"), &Request{ID: "1"}, intoHeader(&header)); err == nil || replayed(header) {
						t.Errorf("%v, replayed %v", err, replayed(header))
					}
				}
				let()
				for range 2 {
					thing, err := client.Make(keyed(t, "k"), &Request{ID: "1"})
					is(t, thing, err, "run 1")
				}
				s.ran(t, 1)
			})
		}
	}
}

func swallowedRefusal(t *rig) {
	for hook, opts := range denyHooks(t) {
		for _, answer := range []error{nil, failure(t, Aborted, "charged, but not shipped"), failure(t, Unavailable, "later")} {
			var s Service
			chain, _ := locked(t, opts...)
			charges := 0
			client := serve(t, &s, t.Idempotency(NewGuard(t, newStore(t)), byUser(t)), t.Answering("charged", func(ctx context.Context, handler func(context.Context) error) error {
				if err := handler(ctx); err == nil {
					t.Error("it is not refused")
				}
				charges++
				return answer
			}), chain)
			for range 3 {
				if _, err := client.Make(keyed(t, "k"), &Request{ID: "1"}); t.CodeOf(err) != t.CodeOf(answer) {
					t.Errorf("%v", err)
				}
			}
			if charges != 1 {
				t.Errorf("%s, %v: %d charges", hook, answer, charges)
			}
		}
	}
}
