package clientctx_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/clientctx"
)

var errLeft = errors.New("left")

type name struct{}

// detached returns the context of a handler, whose request's context is ended by leave.
func detached(t *testing.T) (ctx context.Context, leave, release func()) {
	t.Helper()
	request, left := context.WithCancelCause(context.WithValue(t.Context(), name{}, "n"))
	ctx, release = clientctx.Detach(request)
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	return ctx, func() { left(errLeft) }, release
}

func TestDisconnectedClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave, release := detached(t)
		defer release()
		inner, innerRelease := clientctx.Detach(ctx) // a guard behind the guard
		defer innerRelease()
		inner, cancel := context.WithCancel(inner)
		defer cancel()
		for _, ctx := range []context.Context{ctx, inner} {
			if clientctx.Context(ctx).Err() != nil || clientctx.Context(ctx).Value(name{}) != "n" {
				t.Error("the context has ended too early, or has lost its values")
			}
		}
		leave()
		synctest.Wait()
		for _, ctx := range []context.Context{ctx, inner} {
			if got := context.Cause(clientctx.Context(ctx)); !errors.Is(got, errLeft) || ctx.Err() != nil {
				t.Errorf("%v, and the handler's context has ended with %v", got, ctx.Err())
			}
		}
	})
}

// The server ends the context of an answered request, which is no disconnection for work that
// continues.
func TestAnsweredRequest(t *testing.T) {
	for _, early := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, leave, release := detached(t)
			if early {
				_ = clientctx.Context(ctx)
			}
			release()
			leave()
			synctest.Wait()
			if err := clientctx.Context(ctx).Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestContextWithoutAClient(t *testing.T) {
	ctx, leave, release := detached(t)
	defer release()
	leave()
	for name, ctx := range map[string]context.Context{
		"work that is to outlive the request": context.WithoutCancel(ctx),
		"no guard in front":                   t.Context(),
	} {
		if got := clientctx.Context(ctx); got != ctx {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestDeadlineOfTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		request, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ctx, release := clientctx.Detach(request)
		defer release()
		time.Sleep(time.Second)
		synctest.Wait()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("the handler's context: %v", ctx.Err())
		}
	})
}
