package rpctest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// llmPlan has room for ten calls and for a thousand tokens, and none comes back while a test runs.
var llmPlan = tokenbucket.Limits{tokenbucket.PerDay(10).Named("calls"), tokenbucket.PerDay(1000).Named("tokens")}

// estimated costs a call, and 300 tokens.
func estimated(t *rig) policy.RPCRateLimitOption {
	return t.Costs(tokenbucket.Cost{"calls": 1, "tokens": 300})
}

func use(ctx context.Context, n int64) error {
	r, ok := tokenbucket.FromContext(ctx)
	if !ok {
		return errors.New("there is no reservation")
	}
	return r.Use("tokens", n)
}

// left returns the remaining tokens of a key, by limit.
func left(t *rig, l *tokenbucket.Limiter) string {
	t.Helper()
	var text []string
	for _, s := range must(l.Peek(t.Context(), "global")).Limits() {
		text = append(text, s.Name+" "+strconv.FormatInt(s.Remaining, 10))
	}
	return strings.Join(text, ", ")
}

// ended are interceptors, outside the others, that say when a call is over.
func ended(t *rig, calls *sync.WaitGroup) Interceptor {
	return t.Around(func(ctx context.Context, handler func(context.Context) error) error {
		defer calls.Done()
		return handler(ctx)
	})
}

// ends returns the ways in which a handler can end.
func ends(t *rig) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"an answer": func(context.Context) error { return nil },
		"an error":  func(context.Context) error { return failure(t, Unavailable, "") },
		"a panic":   func(context.Context) error { panic("as expected") },
		"a client that leaves": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	}
}

// unaryOrStream calls a method, of either kind, until the client leaves if it is to.
func unaryOrStream(t *rig, client Client, stream, leaves bool, entered <-chan struct{}) {
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
		_, _ = client.Make(ctx, &Request{})
		return
	}
	watch := must(client.Watch(ctx, &Request{}))
	for {
		if _, err := watch.Recv(); err != nil {
			return
		}
	}
}

func aCallCostsWhatItsHandlerReports(t *rig) {
	for name, end := range ends(t) {
		for used, want := range map[int64]string{
			-1: "calls 9, tokens 700", 0: "calls 9, tokens 1000", 250: "calls 9, tokens 750", 700: "calls 9, tokens 300",
		} {
			for _, stream := range []bool{false, true} {
				l := NewLimiter(t, newStore(t), llmPlan)
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
				s := Service{
					make: func(ctx context.Context, _ *Request) (*Thing, error) {
						return &Thing{}, run(ctx, func() error { return nil })
					},
					watch: func(_ *Request, out ServerStream) error {
						return run(out.Context(), func() error { return out.Send(&Thing{}) })
					},
				}
				var calls sync.WaitGroup
				calls.Add(1)
				client := serve(t, &s, ended(t, &calls), t.RateLimit(l, t.Global(), estimated(t)))
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
func chargeCodes(t *rig) {
	failures := t.ChargeCodes(Unauthenticated, PermissionDenied)
	fails := func(code Code) func(context.Context) error {
		return func(context.Context) error { return failure(t, code, "") }
	}
	for name, c := range map[string]struct {
		end  func(context.Context) error
		want string
	}{
		"OK":                   {ends(t)["an answer"], "api 2"},
		"UNAUTHENTICATED":      {fails(Unauthenticated), "api 1"},
		"PERMISSION_DENIED":    {fails(PermissionDenied), "api 1"},
		"INTERNAL":             {fails(Internal), "api 2"},
		"an error of no code":  {func(context.Context) error { return io.ErrUnexpectedEOF }, "api 2"},
		"a panic":              {ends(t)["a panic"], "api 1"},
		"a client that leaves": {ends(t)["a client that leaves"], "api 1"},
	} {
		for _, stream := range []bool{false, true} {
			l := NewLimiter(t, newStore(t), tokenbucket.PerDay(2))
			entered := make(chan struct{}, 1)
			run := func(ctx context.Context) error {
				entered <- struct{}{}
				return c.end(ctx)
			}
			s := Service{
				make: func(ctx context.Context, _ *Request) (*Thing, error) {
					return &Thing{}, run(ctx)
				},
				watch: func(_ *Request, out ServerStream) error {
					return run(out.Context())
				},
			}
			var calls sync.WaitGroup
			calls.Add(1)
			client := serve(t, &s, ended(t, &calls), t.RateLimit(l, t.Global(), failures))
			unaryOrStream(t, client, stream, name == "a client that leaves", entered)
			calls.Wait()
			if got := left(t, l); got != c.want {
				t.Errorf("%s, stream %v: %s left, want %s", name, stream, got, c.want)
			}
		}
	}
}

func manyFailingCallsAtOnce(t *rig) {
	g := newGate()
	s := Service{make: func(ctx context.Context, r *Request) (*Thing, error) {
		_, _ = g.make(ctx, r)
		return nil, failure(t, Unauthenticated, "")
	}}
	l := NewLimiter(t, newStore(t), tokenbucket.PerDay(10))
	client := serve(t, &s, t.RateLimit(l, t.Global(), t.ChargeCodes(Unauthenticated)))
	answers := make(chan error, 100)
	for range 100 {
		go func() {
			_, err := client.Make(t.Context(), &Request{})
			answers <- err
		}()
	}
	for range 90 {
		denies(t, <-answers, policy.QuotaExceeded)
	}
	for range 10 {
		g.let()
		if err := <-answers; t.CodeOf(err) != Unauthenticated {
			t.Error(err)
		}
	}
	s.ran(t, 10)
}

// Calls at once hold their key if they fail, and not otherwise.
func openAttempts(t *rig) {
	for _, code := range []Code{0, Unauthenticated} {
		g := newGate()
		s := Service{make: func(context.Context, *Request) (*Thing, error) {
			g.pass()
			return &Thing{}, failure(t, code, "")
		}}
		l := NewLimiter(t, newStore(t), tokenbucket.PerDay(3))
		client := serve(t, &s, t.RateLimit(l, t.Global(), t.ChargeCodes(Unauthenticated),
			policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour))))
		var open []<-chan answer
		for range 3 {
			open = append(open, making(t.Context(), t, client, &Request{}))
			g.runs(t)
		}
		for range 2 {
			_, err := client.Make(t.Context(), &Request{})
			denies(t, err, policy.QuotaExceeded)
			if after := t.DetailsOf(err).retryAfter(); after != time.Second {
				t.Errorf("%v: it says to retry after %v", code, after)
			}
		}
		for range open { // all, since the gate does not choose which handler passes
			g.let()
		}
		for _, answers := range open {
			if err := result(t, answers).err; t.CodeOf(err) != code {
				t.Errorf("%v: %v", code, err)
			}
		}
		g.let()
		_, err := client.Make(t.Context(), &Request{})
		if code == 0 {
			ok(t, err)
		} else {
			denies(t, err, policy.AbnormalUsage)
		}
	}
}

func costsThatCannotBeCharged(t *rig) {
	for name, cost := range map[string]tokenbucket.Cost{"negative": {"tokens": -1}, "unknown": {"images": 1}} {
		var s Service
		l := NewLimiter(t, newStore(t), llmPlan)
		client := serve(t, &s, t.RateLimit(l, t.Global(), t.Costs(cost), policy.FailOpen()))
		_, err := client.Make(t.Context(), &Request{})
		denies(t, err, policy.InternalError)
		s.ran(t, 0)
		if got := left(t, l); got != "calls 10, tokens 1000" {
			t.Errorf("%s: %s left", name, got)
		}
	}
}

func aSettlementThatFails(t *rig) {
	var reported []error
	st := newStore(t)
	l := NewLimiter(t, st, llmPlan)
	s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
		return &Thing{}, use(ctx, 10)
	}}
	client := serve(t, &s, t.RateLimit(l, t.Global(), estimated(t), t.OnError(func(_ Call, err error) { reported = append(reported, err) })))
	st.Break(storetest.SettleTokens, storetest.Down)
	_, err := client.Make(t.Context(), &Request{})
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
func shadowOfCosts(t *rig) {
	l := NewLimiter(t, newStore(t), llmPlan)
	var errs []error
	s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
		errs = append(errs, use(ctx, 900))
		return &Thing{}, nil
	}}
	client := serve(t, &s, t.RateLimit(l, t.Global(), estimated(t), policy.Shadow(), policy.Hold(tokenbucket.Escalate(time.Hour, 2, time.Hour))))
	for range 2 {
		_, err := client.Make(t.Context(), &Request{})
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
func heldKey(t *rig) {
	timed(t, func(t *rig) {
		l := NewLimiter(t, newStore(t), tokenbucket.PerMinute(1))
		chain := t.RateLimit(l, t.Global(), policy.Hold(tokenbucket.Escalate(2*time.Minute, 2, time.Hour)))
		call := func() error {
			return t.Call(t.Context(), chain, &Request{}, func() {})
		}
		for _, held := range []time.Duration{2 * time.Minute, 4 * time.Minute, 8 * time.Minute} {
			ok(t, call())
			for _, want := range []time.Duration{held, held - 90*time.Second} {
				err := call()
				denies(t, err, policy.AbnormalUsage)
				if got := t.DetailsOf(err).retryAfter(); got != want {
					t.Errorf("to be tried again after %v, want %v", got, want)
				}
				if quota := t.DetailsOf(err).Quota; !slices.Equal(quota, []string{"limit:api"}) {
					t.Errorf("QuotaFailure %v", quota)
				}
				<-time.After(90 * time.Second)
			}
			<-time.After(held - 3*time.Minute) // at once, the first time
		}
	})
}
