package grpcmw_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

// llmPlan has room for ten calls and for a thousand tokens, and none comes back while a test runs.
var llmPlan = tokenbucket.Limits{tokenbucket.PerDay(10).Named("calls"), tokenbucket.PerDay(1000).Named("tokens")}

// estimated costs a call, and 300 tokens.
var estimated = ratelimit.Costs(func(*grpcmw.Call) tokenbucket.Cost { return tokenbucket.Cost{"calls": 1, "tokens": 300} })

func use(ctx context.Context, n int64) error {
	r, ok := tokenbucket.FromContext(ctx)
	if !ok {
		return errors.New("there is no reservation")
	}
	return r.Use("tokens", n)
}

// left returns what is left of the limits of a key.
func left(t *testing.T, l *tokenbucket.Limiter) string {
	t.Helper()
	var text []string
	for _, s := range must(l.Peek(t.Context(), "global")).Limits() {
		text = append(text, s.Name+" "+strconv.FormatInt(s.Remaining, 10))
	}
	return strings.Join(text, ", ")
}

// ended are interceptors, outside the others, that say when a call is over.
func ended(calls *sync.WaitGroup) grpcmw.Interceptors {
	return grpcmw.Interceptors{
		Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			defer calls.Done()
			return handler(ctx, req)
		},
		Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			defer calls.Done()
			return handler(srv, ss)
		},
	}
}

// ends are the ways in which a handler can end.
var ends = map[string]func(context.Context) error{
	"an answer": func(context.Context) error { return nil },
	"an error":  func(context.Context) error { return status.Error(codes.Unavailable, "") },
	"a panic":   func(context.Context) error { panic("as expected") },
	"a client that leaves": func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	},
}

// unaryOrStream calls a method, of either kind, until the client leaves if it is to.
func unaryOrStream(t *testing.T, client things.ThingsClient, stream, leaves bool, entered <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if leaves {
		go func() {
			<-entered
			cancel()
		}()
	}
	if !stream {
		_, _ = client.Make(ctx, &things.MakeRequest{})
		return
	}
	watch := must(client.Watch(ctx, &things.MakeRequest{}))
	for {
		if _, err := watch.Recv(); err != nil {
			return
		}
	}
}

func TestACallCostsWhatItsHandlerReports(t *testing.T) {
	for name, end := range ends {
		for used, want := range map[int64]string{
			-1: "calls 9, tokens 700", 0: "calls 9, tokens 1000", 250: "calls 9, tokens 750", 700: "calls 9, tokens 300",
		} {
			for _, stream := range []bool{false, true} {
				l := newLimiter(t, newStore(t), llmPlan)
				entered := make(chan struct{}, 1)
				run := func(ctx context.Context, sent func() error) error {
					if used >= 0 {
						ok(t, use(ctx, 10))
						ok(t, sent())
						ok(t, use(ctx, used))
					}
					entered <- struct{}{}
					return end(ctx)
				}
				s := service{
					make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
						return &things.Thing{}, run(ctx, func() error { return nil })
					},
					watch: func(_ *things.MakeRequest, out grpc.ServerStreamingServer[things.Thing]) error {
						return run(out.Context(), func() error { return out.Send(&things.Thing{}) })
					},
				}
				var calls sync.WaitGroup
				calls.Add(1)
				client := serve(t, &s, ended(&calls), ratelimit.New(l, grpcmw.Global(), estimated))
				unaryOrStream(t, client, stream, name == "a client that leaves", entered)
				calls.Wait()
				if got := left(t, l); got != want {
					t.Errorf("%s, stream %v, used %d: %s left, want %s", name, stream, used, got, want)
				} else {
					t.Logf("%s, stream %v, used %d: %s left", name, stream, used, got)
				}
			}
		}
	}
}

// Only calls that end with one of the codes are charged, or whose end is not known.
func TestChargeCodes(t *testing.T) {
	failures := ratelimit.ChargeCodes(codes.Unauthenticated, codes.PermissionDenied)
	fails := func(code codes.Code) func(context.Context) error {
		return func(context.Context) error { return status.Error(code, "") }
	}
	for name, c := range map[string]struct {
		end  func(context.Context) error
		want string
	}{
		"OK":                   {ends["an answer"], "api 2"},
		"UNAUTHENTICATED":      {fails(codes.Unauthenticated), "api 1"},
		"PERMISSION_DENIED":    {fails(codes.PermissionDenied), "api 1"},
		"INTERNAL":             {fails(codes.Internal), "api 2"},
		"an error of no code":  {func(context.Context) error { return io.ErrUnexpectedEOF }, "api 2"},
		"a panic":              {ends["a panic"], "api 1"},
		"a client that leaves": {ends["a client that leaves"], "api 1"},
	} {
		for _, stream := range []bool{false, true} {
			l := newLimiter(t, newStore(t), tokenbucket.PerDay(2))
			entered := make(chan struct{}, 1)
			run := func(ctx context.Context) error {
				entered <- struct{}{}
				return c.end(ctx)
			}
			s := service{
				make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
					return &things.Thing{}, run(ctx)
				},
				watch: func(_ *things.MakeRequest, out grpc.ServerStreamingServer[things.Thing]) error {
					return run(out.Context())
				},
			}
			var calls sync.WaitGroup
			calls.Add(1)
			client := serve(t, &s, ended(&calls), ratelimit.New(l, grpcmw.Global(), failures))
			unaryOrStream(t, client, stream, name == "a client that leaves", entered)
			calls.Wait()
			if got := left(t, l); got != c.want {
				t.Errorf("%s, stream %v: %s left, want %s", name, stream, got, c.want)
			}
		}
	}
}

func TestManyFailingCallsAtOnce(t *testing.T) {
	g := newGate()
	s := service{make: func(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
		_, _ = g.make(ctx, r)
		return nil, status.Error(codes.Unauthenticated, "")
	}}
	l := newLimiter(t, newStore(t), tokenbucket.PerDay(10))
	client := serve(t, &s, ratelimit.New(l, grpcmw.Global(), ratelimit.ChargeCodes(codes.Unauthenticated)))
	answers := make(chan error, 100)
	for range 100 {
		go func() {
			_, err := client.Make(t.Context(), &things.MakeRequest{})
			answers <- err
		}()
	}
	for range 90 {
		denies(t, <-answers, policy.QuotaExceeded)
	}
	for range 10 {
		g.let()
		if err := <-answers; status.Code(err) != codes.Unauthenticated {
			t.Error(err)
		}
	}
	s.ran(t, 10)
}

// Calls at once hold their key if they fail, and not otherwise.
func TestOpenAttempts(t *testing.T) {
	for _, code := range []codes.Code{codes.OK, codes.Unauthenticated} {
		g := newGate()
		s := service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) {
			g.pass()
			return &things.Thing{}, status.Error(code, "")
		}}
		l := newLimiter(t, newStore(t), tokenbucket.PerDay(3))
		client := serve(t, &s, ratelimit.New(l, grpcmw.Global(), ratelimit.ChargeCodes(codes.Unauthenticated),
			policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour))))
		var open []<-chan answer
		for range 3 {
			open = append(open, making(t.Context(), t, client, &things.MakeRequest{}))
			g.runs(t)
		}
		for range 2 {
			_, err := client.Make(t.Context(), &things.MakeRequest{})
			denies(t, err, policy.QuotaExceeded)
			if after := detail[errdetails.RetryInfo](err).GetRetryDelay().AsDuration(); after != time.Second {
				t.Errorf("%v: it says to retry after %v", code, after)
			}
		}
		for range open { // all, since the gate does not choose which handler passes
			g.let()
		}
		for _, answers := range open {
			if err := result(t, answers).err; status.Code(err) != code {
				t.Errorf("%v: %v", code, err)
			}
		}
		g.let()
		_, err := client.Make(t.Context(), &things.MakeRequest{})
		if code == codes.OK {
			ok(t, err)
		} else {
			denies(t, err, policy.AbnormalUsage)
		}
	}
}

func TestCostsThatCannotBeCharged(t *testing.T) {
	for name, cost := range map[string]tokenbucket.Cost{"negative": {"tokens": -1}, "unknown": {"images": 1}} {
		var s service
		l := newLimiter(t, newStore(t), llmPlan)
		client := serve(t, &s, ratelimit.New(l, grpcmw.Global(), ratelimit.Costs(func(*grpcmw.Call) tokenbucket.Cost { return cost }), policy.FailOpen()))
		_, err := client.Make(t.Context(), &things.MakeRequest{})
		denies(t, err, policy.InternalError)
		s.ran(t, 0)
		if got := left(t, l); got != "calls 10, tokens 1000" {
			t.Errorf("%s: %s left", name, got)
		}
	}
}

func TestASettlementThatFails(t *testing.T) {
	var reported []error
	st := newStore(t)
	l := newLimiter(t, st, llmPlan)
	s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		return &things.Thing{}, use(ctx, 10)
	}}
	client := serve(t, &s, ratelimit.New(l, grpcmw.Global(), estimated, grpcmw.OnError(func(_ *grpcmw.Call, err error) { reported = append(reported, err) })))
	st.Break(storetest.SettleTokens, storetest.Down)
	_, err := client.Make(t.Context(), &things.MakeRequest{})
	ok(t, err)
	if len(reported) != 1 || !errors.Is(reported[0], store.ErrUnavailable) {
		t.Errorf("reported %v", reported)
	}
	if got := left(t, l); got != "calls 9, tokens 700" {
		t.Errorf("%s left", got)
	}
}

// With costs, a limit in shadow charges calls, and refuses none; a call beyond it has no
// reservation.
func TestShadowOfCosts(t *testing.T) {
	l := newLimiter(t, newStore(t), llmPlan)
	var errs []error
	s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		errs = append(errs, use(ctx, 900))
		return &things.Thing{}, nil
	}}
	client := serve(t, &s, ratelimit.New(l, grpcmw.Global(), estimated, policy.Shadow(), policy.Hold(tokenbucket.Escalate(time.Hour, 2, time.Hour))))
	for range 2 {
		_, err := client.Make(t.Context(), &things.MakeRequest{})
		ok(t, err)
	}
	if len(errs) != 2 || errs[0] != nil || errs[1] == nil {
		t.Errorf("%v", errs)
	}
	if d := must(l.Peek(t.Context(), "global")); d.Held == 0 || left(t, l) != "calls 9, tokens 100" {
		t.Errorf("%+v, %s left", d, left(t, l))
	}
}

// A key that exceeds its limits is held, longer each time.
func TestHeldKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, newStore(t), tokenbucket.PerMinute(1))
		chain := ratelimit.New(l, grpcmw.Global(), policy.Hold(tokenbucket.Escalate(2*time.Minute, 2, time.Hour)))
		call := func() error {
			_, err := chain.Unary(t.Context(), &things.MakeRequest{}, &grpc.UnaryServerInfo{FullMethod: things.Things_Make_FullMethodName},
				func(context.Context, any) (any, error) { return &things.Thing{}, nil })
			return err
		}
		for _, held := range []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
			ok(t, call())
			for _, want := range []time.Duration{held, held - 90*time.Second} {
				err := call()
				denies(t, err, policy.AbnormalUsage)
				if got := detail[errdetails.RetryInfo](err).GetRetryDelay().AsDuration(); got != want {
					t.Errorf("to be tried again after %v, want %v", got, want)
				}
				if quota := detail[errdetails.QuotaFailure](err); len(quota.GetViolations()) != 1 || quota.GetViolations()[0].GetSubject() != "limit:api" {
					t.Errorf("QuotaFailure %v", quota)
				}
				time.Sleep(90 * time.Second)
			}
			time.Sleep(held - 3*time.Minute) // at once, the first time
		}
	})
}
