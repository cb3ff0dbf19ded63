package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/client"
)

var errLeft = errors.New("left")

type name struct{}

// detached is the context of a handler, of a request that leave ends.
func detached(t *testing.T) (ctx context.Context, leave, release func()) {
	t.Helper()
	request, left := context.WithCancelCause(context.WithValue(t.Context(), name{}, "n"))
	ctx, release = client.Detach(request)
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	return ctx, func() { left(errLeft) }, release
}

func TestAClientThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave, release := detached(t)
		defer release()
		inner, innerRelease := client.Detach(ctx) // a guard behind the guard
		defer innerRelease()
		inner, cancel := context.WithCancel(inner)
		defer cancel()
		for _, ctx := range []context.Context{ctx, inner} {
			if client.Context(ctx).Err() != nil || client.Context(ctx).Value(name{}) != "n" {
				t.Error("the client has left before it leaves, or its values are gone")
			}
		}
		leave()
		synctest.Wait()
		for _, ctx := range []context.Context{ctx, inner} {
			if got := context.Cause(client.Context(ctx)); !errors.Is(got, errLeft) || ctx.Err() != nil {
				t.Errorf("%v, and the handler's context has ended with %v", got, ctx.Err())
			}
		}
	})
}

// The server ends the context of a request that was answered. What runs on does not take that for the
// client's leaving.
func TestARequestThatWasAnswered(t *testing.T) {
	for _, early := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, leave, release := detached(t)
			if early {
				_ = client.Context(ctx)
			}
			release()
			leave()
			synctest.Wait()
			if err := client.Context(ctx).Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWhatHasNoClient(t *testing.T) {
	ctx, leave, release := detached(t)
	defer release()
	leave()
	for name, ctx := range map[string]context.Context{
		"work that is to outlive the request": context.WithoutCancel(ctx),
		"no guard in front":                   t.Context(),
	} {
		if got := client.Context(ctx); got != ctx {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestTheDeadlineOfTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		request, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ctx, release := client.Detach(request)
		defer release()
		time.Sleep(time.Second)
		synctest.Wait()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("the handler's context: %v", ctx.Err())
		}
	})
}
