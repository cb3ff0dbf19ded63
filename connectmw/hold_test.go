package connectmw_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

var byID = connectmw.ByField("id")

func TestCallsOfAKeyExcludeEachOther(t *testing.T) {
	g := newGate()
	s := service{make: g.make}
	locker := newLocker(t, newStore(t))
	client := serve(t, &s, exclusive.New(locker, byID))
	first := making(t.Context(), t, client, &things.MakeRequest{Id: "1"})
	g.runs(t)
	_, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"})
	denies(t, err, policy.Locked)
	if _, err := locker.TryLock(t.Context(), "1"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("without gRPC: %v", err)
	}
	other := making(t.Context(), t, client, &things.MakeRequest{Id: "2"})
	g.runs(t)
	g.let()
	g.let()
	is(t, result(t, first).thing, nil, "done")
	is(t, result(t, other).thing, nil, "done")
	g.let()
	thing, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"})
	is(t, thing, err, "done")
}

func TestOverload(t *testing.T) {
	g := newGate()
	s := service{make: g.make}
	client := serve(t, &s, concurrency.New(newSemaphore(t, newStore(t), 1), byID, policy.Overload()))
	first := making(t.Context(), t, client, &things.MakeRequest{Id: "1"})
	g.runs(t)
	_, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"})
	denies(t, err, policy.ReducedCapacity)
	if after := detail[errdetails.RetryInfo](err).GetRetryDelay().AsDuration(); after < time.Second || after > 4*time.Second {
		t.Errorf("it says to retry after %v", after)
	}
	g.let()
	is(t, result(t, first).thing, nil, "done")
}

// A tier is refused beyond its part, and higher ones pass. An unknown one is the lowest.
func TestTiersOfCalls(t *testing.T) {
	g := newGate()
	s := service{make: g.make}
	sem := newSemaphore(t, newStore(t), 4)
	if err := sem.SetTierShares(semaphore.TierShares{Normal: 0.75, Low: 0.5, Background: 0.25}); err != nil {
		t.Fatal(err)
	}
	tiers := map[string]policy.Tier{"": policy.Critical, "normal": policy.Normal, "low": policy.Low, "background": policy.Background, "unknown": 77}
	client := serve(t, &s, concurrency.New(sem, connectmw.Global(), concurrency.Tiers(func(call *connectmw.Call) policy.Tier {
		return tiers[call.Header().Get("Tier")]
	})))
	in := func(tier string) context.Context { return sending(t.Context(), "tier", tier) }
	var answers []<-chan answer
	lower := []string{"unknown"}
	for _, tier := range []string{"background", "low", "normal", ""} {
		answers = append(answers, making(in(tier), t, client, &things.MakeRequest{Id: "1"}))
		g.runs(t)
		lower = append(lower, tier)
		for _, tier := range lower {
			_, err := client.Make(in(tier), &things.MakeRequest{Id: "1"})
			denies(t, err, policy.TooManyAtOnce)
		}
	}
	for range answers {
		g.let()
	}
	for _, a := range answers {
		is(t, result(t, a).thing, nil, "done")
	}
}

// Failures do not raise an adaptive capacity, and streams are nothing to it.
func TestSamplesOfCalls(t *testing.T) {
	unary := func(err error) (call func(context.Context, client), s *service) {
		return func(ctx context.Context, c client) { _, _ = c.Make(ctx, &things.MakeRequest{Id: "1"}) },
			&service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) { return &things.Thing{}, err }}
	}
	left := func() (func(context.Context, client), *service) {
		entered := make(chan struct{})
		return func(ctx context.Context, c client) {
				ctx, cancel := context.WithCancel(ctx)
				go func() {
					<-entered
					cancel()
				}()
				_, _ = c.Make(ctx, &things.MakeRequest{Id: "1"})
			}, &service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
				entered <- struct{}{}
				<-ctx.Done()
				return &things.Thing{}, nil
			}}
	}
	stream := func() (func(context.Context, client), *service) {
		return func(ctx context.Context, c client) {
				_, _ = must(c.Watch(ctx, &things.MakeRequest{Id: "1"})).Recv()
			}, &service{watch: func(_ *things.MakeRequest, s *serverStream) error {
				return s.Send(&things.Thing{})
			}}
	}
	of := func(code connect.Code) func() (func(context.Context, client), *service) {
		return func() (func(context.Context, client), *service) { return unary(failure(code, "")) }
	}
	for name, c := range map[string]struct {
		make           func() (func(context.Context, client), *service)
		worked, counts bool
	}{
		"an answer":            {of(0), true, true},
		"the client's mistake": {of(connect.CodeNotFound), true, true},
		"a refusal":            {of(connect.CodeResourceExhausted), true, true},
		"the server's failure": {of(connect.CodeInternal), false, true},
		"unavailable":          {of(connect.CodeUnavailable), false, true},
		"a deadline":           {of(connect.CodeDeadlineExceeded), false, true},
		"an error":             {func() (func(context.Context, client), *service) { return unary(errors.New("failed")) }, false, true},
		"a client that left":   {left, false, true},
		"a stream":             {stream, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, target := range []time.Duration{time.Hour, time.Nanosecond} {
				change := tiertest.Adapts(t, target, func(sem *semaphore.Semaphore) func() {
					call, s := c.make()
					client := serve(t, s, concurrency.New(sem, byID))
					return func() { call(t.Context(), client) }
				})
				if target == time.Hour && change > 0 != c.worked || target < time.Hour && change < 0 != c.counts {
					t.Errorf("with a target of %v the capacity changes by %d", target, change)
				}
			}
		})
	}
}

func TestCallsAreLimitedToTheCapacity(t *testing.T) {
	g := newGate()
	s := service{make: g.make}
	client := serve(t, &s, concurrency.New(newSemaphore(t, newStore(t), 2), byID))
	var answers []<-chan answer
	for range 2 {
		answers = append(answers, making(t.Context(), t, client, &things.MakeRequest{Id: "1"}))
		g.runs(t)
	}
	_, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"})
	denies(t, err, policy.TooManyAtOnce)
	g.let()
	g.let()
	for _, a := range answers {
		is(t, result(t, a).thing, nil, "done")
	}
}

func TestWaitingCallIsServed(t *testing.T) {
	for name, c := range map[string]func(opt policy.WaitOption) (connect.Interceptor, func() int){
		"exclusive": func(opt policy.WaitOption) (connect.Interceptor, func() int) {
			l := newLocker(t, newStore(t))
			return exclusive.New(l, byID, opt), func() int {
				_, err := l.TryLock(t.Context(), "1")
				var held *lock.HeldError
				if errors.As(err, &held) {
					return held.Waiting
				}
				return 0
			}
		},
		"concurrency": func(opt policy.WaitOption) (connect.Interceptor, func() int) {
			sem := newSemaphore(t, newStore(t), 1)
			return concurrency.New(sem, byID, opt), func() int {
				_, err := sem.TryAcquire(t.Context(), "1")
				var busy *semaphore.BusyError
				if errors.As(err, &busy) {
					return busy.Waiting
				}
				return 0
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			s := service{make: g.make}
			chain, waiting := c(policy.Wait(patience))
			client := serve(t, &s, chain)
			first := making(t.Context(), t, client, &things.MakeRequest{Id: "1"})
			g.runs(t)
			second := making(t.Context(), t, client, &things.MakeRequest{Id: "1"})
			for deadline := time.Now().Add(patience); waiting() != 1; {
				if time.Now().After(deadline) {
					t.Fatal("no call waits")
				}
			}
			g.idle(t)
			g.let()
			is(t, result(t, first).thing, nil, "done")
			g.runs(t)
			g.let()
			is(t, result(t, second).thing, nil, "done")

			chain, _ = c(policy.Wait(50 * time.Millisecond))
			client = serve(t, &s, chain)
			first = making(t.Context(), t, client, &things.MakeRequest{Id: "1"})
			g.runs(t)
			if _, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"}); codeOf(err) != connect.CodeAborted && codeOf(err) != connect.CodeResourceExhausted {
				t.Errorf("a call that has waited for the maximum: %v", err)
			}
			g.let()
			result(t, first)
		})
	}
}

// A stream has its lock, or permit, from its beginning to its end.
func TestStreamHoldsUntilItsEnd(t *testing.T) {
	l, sem := newLocker(t, newStore(t)), newSemaphore(t, newStore(t), 1)
	for name, chain := range map[string]connect.Interceptor{
		"exclusive": exclusive.New(l, byID), "concurrency": concurrency.New(sem, byID),
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			found := make(chan bool, 2)
			s := service{watch: func(r *things.MakeRequest, stream *serverStream) error {
				lease, locked := lock.FromContext(stream.Context())
				permit, permitted := semaphore.FromContext(stream.Context())
				found <- locked && lease.Key() == "1" || permitted && permit.Key() == "1"
				g.pass()
				return stream.Send(&things.Thing{Text: "done " + r.GetTags()[0]})
			}}
			client := serve(t, &s, chain)
			r := &things.MakeRequest{Id: "1", Tags: []string{"tag"}}
			for range 2 { // the second finds it free
				stream := must(client.Watch(t.Context(), r))
				g.runs(t)
				if !<-found {
					t.Error("the handler does not find what it holds")
				}
				other := must(client.Watch(t.Context(), r))
				if _, err := other.Recv(); codeOf(err) != connect.CodeAborted && codeOf(err) != connect.CodeResourceExhausted {
					t.Errorf("another stream: %v", err)
				}
				g.let()
				thing, err := stream.Recv()
				is(t, thing, err, "done tag")
				if _, err := stream.Recv(); err == nil {
					t.Error("the stream has not ended")
				}
				for deadline := time.Now().Add(patience); name == "concurrency"; { // it is given back after the answer
					if permit, err := sem.TryAcquire(t.Context(), "1"); err == nil {
						_ = permit.Release(t.Context())
						break
					}
					if time.Now().After(deadline) {
						t.Fatal("the permit is not given back")
					}
				}
			}
		})
	}
}

func TestHandlerFindsItsLease(t *testing.T) {
	s := service{make: func(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
		lease, ok := lock.FromContext(ctx)
		if !ok || lease.Key() != r.GetId() || lease.Fence().Number <= 0 {
			return nil, failure(connect.CodeUnknown, "no lease")
		}
		return &things.Thing{}, nil
	}}
	client := serve(t, &s, exclusive.New(newLocker(t, newStore(t)), byID))
	if _, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"}); err != nil {
		t.Error(err)
	}
}

// A loss during the handler ends its context, and is reported to the server, not to the client.
func TestLostLock(t *testing.T) {
	store := newStore(t)
	locker := newLocker(t, store)
	errs := make(chan error, 1)
	s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		lease, _ := lock.FromContext(ctx)
		if ok, err := locker.ForceUnlock(ctx, "1", lease.Fence().Number); !ok {
			return nil, err
		}
		<-ctx.Done()
		return &things.Thing{Text: context.Cause(ctx).Error()}, nil
	}}
	client := serve(t, &s, exclusive.New(locker, byID, connectmw.OnError(func(_ *connectmw.Call, err error) { errs <- err })))
	thing, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"})
	is(t, thing, err, lock.ErrLost.Error())
	if err := <-errs; !errors.Is(err, lock.ErrLost) {
		t.Errorf("reported %v", err)
	}
}

func TestPanicReleasesTheLock(t *testing.T) {
	s := service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) { panic("boom") }}
	client := serve(t, &s, exclusive.New(newLocker(t, newStore(t)), byID))
	for range 2 {
		if _, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"}); codeOf(err) != connect.CodeInternal {
			t.Errorf("%v", err)
		}
	}
}

func TestCallsBypassTheStore(t *testing.T) {
	store := newStore(t)
	store.Break(storetest.AcquireLease, storetest.Down)
	store.Break(storetest.AcquireLease, storetest.Down)
	for name, chain := range map[string]connect.Interceptor{
		"lock-status":        exclusive.New(newLocker(t, store), byID, policy.RunUnprotected()),
		"concurrency-status": concurrency.New(newSemaphore(t, store, 1), byID, policy.FailOpen()),
	} {
		s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
			_, locked := lock.FromContext(ctx)
			_, permitted := semaphore.FromContext(ctx)
			if locked || permitted {
				return nil, errors.New("it holds something")
			}
			return &things.Thing{}, nil
		}}
		var header http.Header
		if _, err := serve(t, &s, chain).Make(t.Context(), &things.MakeRequest{Id: "1"}, intoHeader(&header)); err != nil {
			t.Error(err)
		}
		if got := strings.Join(header.Values(name), "|"); got != "bypassed" {
			t.Errorf("%s is %q", name, got)
		}
	}
}
