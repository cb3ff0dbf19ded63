package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// overEach runs a test with a client of each protocol, each time on a new server.
func overEach(t *testing.T, newHandler func(t *testing.T) http.Handler, test func(t *testing.T, c client)) {
	for protocol, opts := range map[string][]connect.ClientOption{
		"Connect": nil, "Connect with JSON": {connect.WithProtoJSON()}, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()},
	} {
		t.Run(protocol, func(t *testing.T) {
			server := httptest.NewUnstartedServer(newHandler(t))
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(server.Close)
			test(t, client{t, protocol, connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](server.Client(), server.URL+procedure, opts...)})
		})
	}
}

func newStore(t *testing.T) *storetest.Faulty {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	return storetest.NewFaulty(store)
}

type client struct {
	t        *testing.T
	protocol string
	*connect.Client[wrapperspb.StringValue, wrapperspb.StringValue]
}

// call sends a call of a user with an idempotency key; empty for none.
func (c client) call(user, key string) (string, error) {
	req := connect.NewRequest(wrapperspb.String("tea"))
	if user != "" {
		req.Header().Set("X-User", user)
	}
	if key != "" {
		req.Header().Set("Idempotency-Key", key)
	}
	resp, err := c.CallUnary(c.t.Context(), req)
	if err != nil {
		return "", err
	}
	return resp.Msg.GetValue(), nil
}

func (c client) runs(user, key string) {
	c.t.Helper()
	if got, err := c.call(user, key); got != "order of tea" || err != nil {
		c.t.Fatalf("%q, %v", got, err)
	}
}

// refused checks the error of a denial. Whether it has a retry delay depends on the reason.
func refused(t *testing.T, err error, code connect.Code, reason policy.Reason, retry bool) {
	t.Helper()
	var denial *connect.Error
	if !errors.As(err, &denial) || denial.Code() != code {
		t.Fatalf("%v, want %v: %s", err, code, reason)
	}
	var delay time.Duration
	for _, detail := range denial.Details() {
		switch value, _ := detail.Value(); value := value.(type) {
		case *errdetails.ErrorInfo:
			if want := strings.ToUpper(strings.ReplaceAll(string(reason), "-", "_")); value.GetReason() != want {
				t.Errorf("the reason is %s, want %s", value.GetReason(), want)
			}
		case *errdetails.RetryInfo:
			delay = value.GetRetryDelay().AsDuration()
		}
	}
	if delay > 0 != retry || (denial.Meta().Get("Retry-After") != "") != retry {
		t.Errorf("%s: to be tried again in %v, header %v", reason, delay, denial.Meta())
	}
}

func TestTooManyCallsOfAnAddress(t *testing.T) {
	overEach(t, func(t *testing.T) http.Handler { return newServer(newStore(t), checkout) }, func(t *testing.T, c client) {
		for range 1000 {
			_, err := c.call("", "")
			if connect.CodeOf(err) == connect.CodeUnauthenticated {
				continue // it has no user, and is counted all the same
			}
			refused(t, err, connect.CodeResourceExhausted, policy.QuotaExceeded, true)
			return
		}
		t.Error("1000 calls have passed")
	})
}

func TestCallRunsOnce(t *testing.T) {
	runs := 0
	counting := func(ctx context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		runs++
		return checkout(ctx, r)
	}
	overEach(t, func(t *testing.T) http.Handler { return newServer(newStore(t), counting) }, func(t *testing.T, c client) {
		runs = 0
		_, err := c.call("alice", "")
		refused(t, err, connect.CodeInvalidArgument, policy.KeyMissing, false)
		c.runs("alice", "k")
		c.runs("alice", "k")
		if runs != 1 {
			t.Errorf("it ran %d times", runs)
		}
	})
}

func TestCallsOfAUserExcludeEachOther(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	gated := func(ctx context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
		entered <- struct{}{}
		<-leave
		return checkout(ctx, r)
	}
	overEach(t, func(t *testing.T) http.Handler { return newServer(newStore(t), gated) }, func(t *testing.T, c client) {
		done := make(chan error, 2)
		for _, user := range []string{"alice", "bob"} {
			go func() {
				_, err := c.call(user, "first")
				done <- err
			}()
			select {
			case <-entered:
			case err := <-done:
				t.Fatalf("the call of %s did not run: %v", user, err)
			}
		}
		_, err := c.call("alice", "second")
		refused(t, err, connect.CodeAborted, policy.Locked, true)
		_, err = c.call("carol", "first")
		refused(t, err, connect.CodeResourceExhausted, policy.TooManyAtOnce, true)
		for range 2 {
			leave <- struct{}{}
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestOutageIsUnavailable(t *testing.T) {
	var store *storetest.Faulty
	overEach(t, func(t *testing.T) http.Handler {
		store = newStore(t)
		return newServer(store, checkout)
	}, func(t *testing.T, c client) {
		store.Break(storetest.AcquireLease, storetest.Down)
		_, err := c.call("alice", "k")
		refused(t, err, connect.CodeUnavailable, policy.ReducedCapacity, true)
		store.Mend(storetest.AcquireLease)
		c.runs("alice", "k") // a refusal behind the guard is not kept
	})
}
