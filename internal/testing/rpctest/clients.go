package rpctest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Plenty is a limit that no test reaches.
var Plenty = tokenbucket.PerSecond(1000)

// withRetryInfo returns a refusal that asks for a pause.
func withRetryInfo(t *rig, code Code, after time.Duration) error {
	return t.Failure(code, "", Details{RetryAfter: &after})
}

// limited returns a client of a service whose calls and streams are limited by the ID of their
// tenant, which is in a context.
func limited(t *rig, addr string, limiter *tokenbucket.Limiter, opts ...policy.RPCClientOption) Client {
	t.Helper()
	return t.Dial(t.T, addr, t.RateLimitClient(limiter, t.ByContext(tenantKey{}), opts...))
}

// pairs returns metadata: name, value, name, value.
func pairs(list ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(list); i += 2 {
		h.Add(list[i], list[i+1])
	}
	return h
}

type tenantKey struct{}

func ofTenant(t *rig, tenant string) context.Context {
	return context.WithValue(t.Context(), tenantKey{}, tenant)
}

// An answer that asks for a pause holds the key of its call, or its stream, and no other.
func answersHoldTheKeyOfACall(t *rig) {
	const hour = time.Hour
	day := 24 * hour
	began := time.Now()
	for name, c := range map[string]struct {
		err     error
		trailer http.Header
		opts    []policy.RPCClientOption
		want    time.Duration
	}{
		"resource exhausted": {err: withRetryInfo(t, ResourceExhausted, 10*time.Minute), want: 10 * time.Minute},
		"unavailable":        {err: withRetryInfo(t, Unavailable, 10*time.Minute), want: 10 * time.Minute},
		"aborted":            {err: withRetryInfo(t, Aborted, hour), trailer: pairs("retry-after", "60")},
		"another code":       {err: withRetryInfo(t, NotFound, hour)},
		"no RetryInfo":       {err: failure(t, ResourceExhausted, "too large a message")},
		"a year":             {err: withRetryInfo(t, ResourceExhausted, 365*day), want: 15 * time.Minute},
		"ages":               {err: withRetryInfo(t, ResourceExhausted, 1<<63-1), want: 15 * time.Minute},
		"a negative one":     {err: withRetryInfo(t, ResourceExhausted, -hour)},
		"a higher cap": {
			err: withRetryInfo(t, ResourceExhausted, 365*day), opts: []policy.RPCClientOption{policy.MaxHold(day)}, want: day,
		},
		"no holds": {err: withRetryInfo(t, ResourceExhausted, hour), opts: []policy.RPCClientOption{policy.MaxHold(0)}},
		"pushback": {
			err: failure(t, Unavailable, ""), trailer: pairs("grpc-retry-pushback-ms", "600000"), want: 10 * time.Minute,
		},
		"pushback of another code": {err: failure(t, Internal, ""), trailer: pairs("grpc-retry-pushback-ms", "600000")},
		"negative pushback":        {err: failure(t, Unavailable, ""), trailer: pairs("grpc-retry-pushback-ms", "-1")},
		"pushback of no number":    {err: failure(t, Unavailable, ""), trailer: pairs("grpc-retry-pushback-ms", "1e400")},
		"retry-after":              {err: failure(t, Unknown, ""), trailer: pairs("retry-after", "600"), want: 10 * time.Minute},
		"retry-after of success":   {trailer: pairs("retry-after", "600"), want: 10 * time.Minute},
		"retry-after as a date": {
			trailer: pairs("retry-after", time.Now().Add(10*time.Minute).UTC().Format(http.TimeFormat)),
			want:    10 * time.Minute,
		},
		"retry-after as a date of the server's": {
			trailer: pairs("retry-after", "Fri, 02 Jan 2026 00:10:00 GMT", "date", "Fri, 02 Jan 2026 00:00:00 GMT"),
			want:    10 * time.Minute,
		},
		"retry-after as garbage": {trailer: pairs("retry-after", "NaN")},
		"the longest of all": {err: withRetryInfo(t, Unavailable, time.Minute),
			trailer: pairs("retry-after", "600", "grpc-retry-pushback-ms", "10", "retry-after", "7"), want: 10 * time.Minute},
		"success": {},
	} {
		if c.trailer.Get("Date") != "" && !t.Traits().DateMetadata {
			continue
		}
		s := &Service{
			make: func(ctx context.Context, _ *Request) (*Thing, error) {
				for name, values := range c.trailer {
					for _, value := range values {
						t.SetTrailer(ctx, name, value)
					}
				}
				return &Thing{}, c.err
			},
			watch: func(_ *Request, stream ServerStream) error {
				stream.SetTrailer(c.trailer)
				_ = stream.Send(&Thing{})
				return c.err
			},
		}
		for kind, call := range map[string]func(Client) error{
			"call": func(client Client) error {
				var trailer http.Header // the caller's own
				_, err := client.Make(ofTenant(t, "a"), &Request{}, intoTrailer(&trailer))
				for name, values := range c.trailer {
					if len(trailer[name]) < len(values) {
						t.Errorf("the caller got the trailer %v", trailer)
					}
				}
				return err
			},
			"stream": func(client Client) error {
				stream := must(client.Watch(ofTenant(t, "a"), &Request{}))
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
			t.Run(name+"/"+kind, func(t *rig) {
				limiter := NewLimiter(t, newStore(t), Plenty)
				if err := call(limited(t, t.Listen(t.T, s), limiter, c.opts...)); t.CodeOf(err) != t.CodeOf(c.err) {
					t.Errorf("%v, want %v", err, c.err)
				}
				if d := must(limiter.Peek(t.Context(), "a")).Held; d > c.want || d < c.want-time.Minute-time.Since(began) {
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
func serverIsObeyed(t *rig) {
	const pause = 500 * time.Millisecond
	for name, stores := range map[string]func(t *rig) []store.Buckets{
		"memory": func(t *rig) []store.Buckets {
			st := inMemory(t)
			return []store.Buckets{st, st}
		},
		"redis": func(t *rig) (all []store.Buckets) {
			server := redistest.Start(t)
			for range 2 {
				st := must(redisstore.New(server.Client(), redisstore.WithTimeout(patience)))
				t.Cleanup(func() { _ = st.Close() })
				all = append(all, st)
			}
			return all
		},
	} {
		t.Run(name, func(t *rig) {
			var mu sync.Mutex
			var refused time.Time
			arrived := map[string][]time.Time{}
			s := &Service{make: func(_ context.Context, r *Request) (*Thing, error) {
				mu.Lock()
				defer mu.Unlock()
				arrived[r.ID] = append(arrived[r.ID], time.Now())
				if r.ID == "a" && refused.IsZero() {
					refused = time.Now()
					return nil, withRetryInfo(t, ResourceExhausted, pause)
				}
				return &Thing{}, nil
			}}
			addr := t.Listen(t.T, s)
			var clients []Client
			for _, st := range stores(t) {
				clients = append(clients, limited(t, addr, NewLimiter(t, st, Plenty)))
			}
			call := func(client Client, tenant string) error {
				_, err := client.Make(ofTenant(t, tenant), &Request{ID: tenant})
				return err
			}
			if err := call(clients[0], "a"); t.CodeOf(err) != ResourceExhausted {
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
func refusalOfThisProcessHoldsNothing(t *rig) {
	broken := newStore(t)
	broken.Break(storetest.Any, storetest.Down)
	inner := t.RateLimitClient(NewLimiter(t, broken, Plenty), t.Global())
	limiter := NewLimiter(t, newStore(t), Plenty)
	client := t.Dial(t.T, t.Listen(t.T, &Service{}), t.RateLimitClient(limiter, t.Global()), inner)
	_, err := client.Make(t.Context(), &Request{})
	denies(t, err, policy.ReducedCapacity)
	if d := must(limiter.Peek(t.Context(), "global")); d.Held != 0 {
		t.Errorf("held for %v", d.Held)
	}
}

// A call whose key is held until after its deadline is refused at once, and the process obeys by
// itself if the store does not hold the key.
func heldCallsAndTheirDeadline(t *rig) {
	for name, fault := range map[string]storetest.Fault{"held": 0, "held in this process": storetest.Down} {
		t.Run(name, func(t *rig) {
			var logs bytes.Buffer
			st := newStore(t)
			if fault != 0 {
				st.Break(storetest.HoldTokens, fault)
			}
			s := &Service{make: func(context.Context, *Request) (*Thing, error) {
				return nil, withRetryInfo(t, ResourceExhausted, 5*time.Minute)
			}}
			client := limited(t, t.Listen(t.T, s), NewLimiter(t, st, Plenty), policy.Logger(slog.New(slog.NewTextHandler(&logs, nil))))
			_, err := client.Make(ofTenant(t, "a"), &Request{})
			if t.CodeOf(err) != ResourceExhausted {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(ofTenant(t, "a"), time.Minute)
			defer cancel()
			_, err = client.Make(ctx, &Request{})
			if t.CodeOf(err) != ResourceExhausted || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
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
func retriesOfAHeldKey(t *rig) {
	var at []time.Time
	s := &Service{make: func(context.Context, *Request) (*Thing, error) {
		if at = append(at, time.Now()); len(at) == 1 {
			return nil, withRetryInfo(t, Unavailable, 200*time.Millisecond)
		}
		return &Thing{Text: "made"}, nil
	}}
	limiter := NewLimiter(t, newStore(t), tokenbucket.PerDay(10))
	repeats := t.AroundClient(func(ctx context.Context, call func(context.Context) error) error {
		if err := call(ctx); err == nil || t.CodeOf(err) != Unavailable {
			return err
		}
		return call(ctx)
	})
	client := t.Dial(t.T, t.Listen(t.T, s), repeats, t.RateLimitClient(limiter, t.Global()))
	thing, err := client.Make(t.Context(), &Request{})
	is(t, thing, err, "made")
	if d := at[1].Sub(at[0]); d < 200*time.Millisecond {
		t.Errorf("retried after %v", d)
	}
	if n := must(limiter.Peek(t.Context(), "global")).Limits()[0].Remaining; n != 8 {
		t.Errorf("%d tokens are left after two attempts", n)
	}
}

// A client's key is on every attempt of a call, and on no other call; a caller's own stays.
func clientsSendKeys(t *rig) {
	var seen []string
	spy := t.Around(func(ctx context.Context, handler func(context.Context) error) error {
		seen = append(seen, strings.Join(t.Incoming(ctx, "idempotency-key"), "|"))
		return handler(ctx)
	})
	var s Service
	twice := t.AroundClient(func(ctx context.Context, call func(context.Context) error) error {
		_ = call(ctx) // as if its answer was lost
		return call(ctx)
	})
	addr := t.Listen(t.T, &s, spy, t.Idempotency(NewGuard(t, newStore(t)), t.Unscoped(), policy.Required()))
	client := t.Dial(t.T, addr, t.IdempotencyClient(), twice)
	for n := range 2 {
		thing, err := client.Make(t.Context(), &Request{})
		is(t, thing, err, []string{"run 1", "run 2"}[n])
	}
	if len(seen) != 4 || seen[0] != seen[1] || seen[2] != seen[3] || seen[0] == seen[2] || len(seen[0]) < 22 {
		t.Errorf("keys %q", seen)
	}
	seen = nil
	_, err := client.Make(t.WithKey(t.Context(), `a "quoted" \ key`), &Request{})
	ok(t, err)
	if want := `"a \"quoted\" \\ key"`; seen[0] != want || seen[1] != want {
		t.Errorf("keys %q, want %s", seen, want)
	}
	seen = nil
	_, err = client.Make(t.Context(), &Request{RequestID: "own"})
	ok(t, err)
	ok(t, client.Get(t.Context())) // it has no side effects
	if strings.Join(seen, "") != "" {
		t.Errorf("keys %q", seen)
	}
}
