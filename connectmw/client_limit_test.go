package connectmw_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// plenty is a limit that no test reaches.
var plenty = tokenbucket.PerSecond(1000)

// withRetryInfo returns a refusal that asks for a pause.
func withRetryInfo(code connect.Code, after time.Duration) error {
	err := connect.NewError(code, nil)
	err.AddDetail(must(connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(after)})))
	return err
}

// limited returns a client of a service whose calls and streams are limited by the ID of their
// tenant, which is in a context.
func limited(t *testing.T, addr string, limiter *tokenbucket.Limiter, opts ...policy.RPCClientOption) client {
	t.Helper()
	return dial(t, addr, ratelimit.NewClient(limiter, connectmw.ByContext(tenantKey{}), opts...))
}

// pairs returns metadata: name, value, name, value.
func pairs(list ...string) http.Header { return addPairs(http.Header{}, list) }

type tenantKey struct{}

func ofTenant(t *testing.T, tenant string) context.Context {
	return context.WithValue(t.Context(), tenantKey{}, tenant)
}

// An answer that asks for a pause holds the key of its call, or its stream, and no other.
func TestAnswersHoldTheKeyOfACall(t *testing.T) {
	const hour = time.Hour
	day := 24 * hour
	for name, c := range map[string]struct {
		err     error
		trailer http.Header
		opts    []policy.RPCClientOption
		want    time.Duration
	}{
		"resource exhausted": {err: withRetryInfo(connect.CodeResourceExhausted, 10*time.Minute), want: 10 * time.Minute},
		"unavailable":        {err: withRetryInfo(connect.CodeUnavailable, 10*time.Minute), want: 10 * time.Minute},
		"aborted":            {err: withRetryInfo(connect.CodeAborted, hour), trailer: pairs("retry-after", "60")},
		"another code":       {err: withRetryInfo(connect.CodeNotFound, hour)},
		"no RetryInfo":       {err: failure(connect.CodeResourceExhausted, "too large a message")},
		"a year":             {err: withRetryInfo(connect.CodeResourceExhausted, 365*day), want: 15 * time.Minute},
		"ages":               {err: withRetryInfo(connect.CodeResourceExhausted, 1<<63-1), want: 15 * time.Minute},
		"a negative one":     {err: withRetryInfo(connect.CodeResourceExhausted, -hour)},
		"a higher cap": {
			err: withRetryInfo(connect.CodeResourceExhausted, 365*day), opts: []policy.RPCClientOption{policy.MaxHold(day)}, want: day,
		},
		"no holds": {err: withRetryInfo(connect.CodeResourceExhausted, hour), opts: []policy.RPCClientOption{policy.MaxHold(0)}},
		"pushback": {
			err: failure(connect.CodeUnavailable, ""), trailer: pairs("grpc-retry-pushback-ms", "600000"), want: 10 * time.Minute,
		},
		"pushback of another code": {err: failure(connect.CodeInternal, ""), trailer: pairs("grpc-retry-pushback-ms", "600000")},
		"negative pushback":        {err: failure(connect.CodeUnavailable, ""), trailer: pairs("grpc-retry-pushback-ms", "-1")},
		"pushback of no number":    {err: failure(connect.CodeUnavailable, ""), trailer: pairs("grpc-retry-pushback-ms", "1e400")},
		"retry-after":              {err: failure(connect.CodeUnknown, ""), trailer: pairs("retry-after", "600"), want: 10 * time.Minute},
		"retry-after of success":   {trailer: pairs("retry-after", "600"), want: 10 * time.Minute},
		"retry-after as a date": {
			trailer: pairs("retry-after", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat)),
			want:    10 * time.Minute,
		},
		"retry-after as garbage": {trailer: pairs("retry-after", "NaN")},
		"the longest of all": {err: withRetryInfo(connect.CodeUnavailable, time.Minute),
			trailer: pairs("retry-after", "600", "grpc-retry-pushback-ms", "10", "retry-after", "7"), want: 10 * time.Minute},
		"success": {},
	} {
		s := &service{
			make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
				info, _ := connect.CallInfoForHandlerContext(ctx)
				maps.Copy(info.ResponseTrailer(), c.trailer)
				return &things.Thing{}, c.err
			},
			watch: func(_ *things.MakeRequest, stream *serverStream) error {
				maps.Copy(stream.ResponseTrailer(), c.trailer)
				_ = stream.Send(&things.Thing{})
				return c.err
			},
		}
		for kind, call := range map[string]func(client) error{
			"call": func(client client) error {
				var trailer http.Header // the caller's own
				_, err := client.Make(ofTenant(t, "a"), &things.MakeRequest{}, intoTrailer(&trailer))
				for name, values := range c.trailer {
					if len(trailer[name]) < len(values) {
						t.Errorf("the caller got the trailer %v", trailer)
					}
				}
				return err
			},
			"stream": func(client client) error {
				stream := must(client.Watch(ofTenant(t, "a"), &things.MakeRequest{}))
				_ = must(stream.Recv())
				_, err := stream.Recv()
				if _, again := stream.Recv(); again == nil {
					t.Error("it went on after its end")
				}
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				limiter := newLimiter(t, newStore(t), plenty)
				if err := call(limited(t, listen(t, s), limiter, c.opts...)); codeOf(err) != codeOf(c.err) {
					t.Errorf("%v, want %v", err, c.err)
				}
				if d := must(limiter.Peek(t.Context(), "a")).Held; d > c.want || d < c.want-time.Minute {
					t.Errorf("held for %v, want %v", d, c.want)
				}
				if d := must(limiter.Peek(t.Context(), "b")).Held; d != 0 {
					t.Errorf("another key is held for %v", d)
				}
			})
		}
	}
}

// A server that refuses a tenant sees none of its calls until then, from any process, by its own
// clock.
func TestServerIsObeyed(t *testing.T) {
	const pause = 500 * time.Millisecond
	for name, stores := range map[string]func(t *testing.T) []store.Buckets{
		"memory": func(t *testing.T) []store.Buckets {
			st := inMemory(t)
			return []store.Buckets{st, st}
		},
		"redis": func(t *testing.T) (all []store.Buckets) {
			server := redistest.Start(t)
			for range 2 {
				st := must(redisstore.New(server.Client()))
				t.Cleanup(func() { _ = st.Close() })
				all = append(all, st)
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var refused time.Time
			arrived := map[string][]time.Time{}
			s := &service{make: func(_ context.Context, r *things.MakeRequest) (*things.Thing, error) {
				mu.Lock()
				defer mu.Unlock()
				arrived[r.GetId()] = append(arrived[r.GetId()], time.Now())
				if r.GetId() == "a" && refused.IsZero() {
					refused = time.Now()
					return nil, withRetryInfo(connect.CodeResourceExhausted, pause)
				}
				return &things.Thing{}, nil
			}}
			addr := listen(t, s)
			var clients []client
			for _, st := range stores(t) {
				clients = append(clients, limited(t, addr, newLimiter(t, st, plenty)))
			}
			call := func(client client, tenant string) error {
				_, err := client.Make(ofTenant(t, tenant), &things.MakeRequest{Id: tenant})
				return err
			}
			if err := call(clients[0], "a"); codeOf(err) != connect.CodeResourceExhausted {
				t.Fatal(err)
			}
			var wait sync.WaitGroup
			for _, client := range clients {
				wait.Go(func() { ok(t, call(client, "a")) })
				wait.Go(func() { ok(t, call(client, "b")) })
			}
			wait.Wait()
			for _, at := range arrived["a"][1:] {
				if d := at.Sub(refused); d < pause {
					t.Errorf("a call after %v", d)
				}
			}
			if n := len(arrived["a"]); n != 3 {
				t.Errorf("%d calls", n)
			}
		})
	}
}

// A refusal by another interceptor of this process is no answer of the server's.
func TestRefusalOfThisProcessHoldsNothing(t *testing.T) {
	broken := newStore(t)
	broken.Break(storetest.Any, storetest.Down)
	inner := ratelimit.NewClient(newLimiter(t, broken, plenty), connectmw.Global())
	limiter := newLimiter(t, newStore(t), plenty)
	client := dial(t, listen(t, &service{}), ratelimit.NewClient(limiter, connectmw.Global()), inner)
	_, err := client.Make(t.Context(), &things.MakeRequest{})
	denies(t, err, policy.ReducedCapacity)
	if d := must(limiter.Peek(t.Context(), "global")); d.Held != 0 {
		t.Errorf("held for %v", d.Held)
	}
}

// A call whose key is held until after its deadline is refused at once, and the process obeys by
// itself if the store does not hold the key.
func TestHeldCallsAndTheirDeadline(t *testing.T) {
	for name, fault := range map[string]storetest.Fault{"held": 0, "held in this process": storetest.Down} {
		t.Run(name, func(t *testing.T) {
			var logs bytes.Buffer
			st := newStore(t)
			if fault != 0 {
				st.Break(storetest.HoldTokens, fault)
			}
			s := &service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) {
				return nil, withRetryInfo(connect.CodeResourceExhausted, 5*time.Minute)
			}}
			client := limited(t, listen(t, s), newLimiter(t, st, plenty), policy.Logger(slog.New(slog.NewTextHandler(&logs, nil))))
			_, err := client.Make(ofTenant(t, "a"), &things.MakeRequest{})
			if codeOf(err) != connect.CodeResourceExhausted {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(ofTenant(t, "a"), time.Minute)
			defer cancel()
			_, err = client.Make(ctx, &things.MakeRequest{})
			if codeOf(err) != connect.CodeResourceExhausted || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			s.ran(t, 1)
			if got := strings.Contains(logs.String(), "held in this process alone"); got != (fault != 0) {
				t.Errorf("logged %s", logs.String())
			}
		})
	}
}

// Behind an interceptor that repeats calls, each attempt waits for the end of a hold.
func TestRetriesOfAHeldKey(t *testing.T) {
	var at []time.Time
	s := &service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) {
		if at = append(at, time.Now()); len(at) == 1 {
			return nil, withRetryInfo(connect.CodeUnavailable, 200*time.Millisecond)
		}
		return &things.Thing{Text: "made"}, nil
	}}
	limiter := newLimiter(t, newStore(t), tokenbucket.PerDay(10))
	repeats := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if resp, err := next(ctx, req); codeOf(err) != connect.CodeUnavailable {
				return resp, err
			}
			return next(ctx, req)
		}
	})
	client := dial(t, listen(t, s), repeats, ratelimit.NewClient(limiter, connectmw.Global()))
	thing, err := client.Make(t.Context(), &things.MakeRequest{})
	is(t, thing, err, "made")
	if d := at[1].Sub(at[0]); d < 200*time.Millisecond {
		t.Errorf("retried after %v", d)
	}
	if n := must(limiter.Peek(t.Context(), "global")).Limits()[0].Remaining; n != 8 {
		t.Errorf("%d tokens are left after two attempts", n)
	}
}
