package grpcmw_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

var byID = grpcmw.ByField("id")

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
	client := serve(t, &s, concurrency.New(sem, grpcmw.Global(), concurrency.Tiers(func(call *grpcmw.Call) policy.Tier {
		name, _ := metadata.FromIncomingContext(call.Context())
		return tiers[strings.Join(name.Get("tier"), "")]
	})))
	in := func(tier string) context.Context { return metadata.AppendToOutgoingContext(t.Context(), "tier", tier) }
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
	unary := func(err error) (call func(context.Context, things.ThingsClient), s *service) {
		return func(ctx context.Context, c things.ThingsClient) { _, _ = c.Make(ctx, &things.MakeRequest{Id: "1"}) },
			&service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) { return &things.Thing{}, err }}
	}
	left := func() (func(context.Context, things.ThingsClient), *service) {
		entered := make(chan struct{})
		return func(ctx context.Context, c things.ThingsClient) {
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
	stream := func() (func(context.Context, things.ThingsClient), *service) {
		return func(ctx context.Context, c things.ThingsClient) {
				_, _ = must(c.Watch(ctx, &things.MakeRequest{Id: "1"})).Recv()
			}, &service{watch: func(_ *things.MakeRequest, s grpc.ServerStreamingServer[things.Thing]) error {
				return s.Send(&things.Thing{})
			}}
	}
	of := func(code codes.Code) func() (func(context.Context, things.ThingsClient), *service) {
		return func() (func(context.Context, things.ThingsClient), *service) { return unary(status.Error(code, "")) }
	}
	for name, c := range map[string]struct {
		make           func() (func(context.Context, things.ThingsClient), *service)
		worked, counts bool
	}{
		"an answer":            {of(codes.OK), true, true},
		"the client's mistake": {of(codes.NotFound), true, true},
		"a refusal":            {of(codes.ResourceExhausted), true, true},
		"the server's failure": {of(codes.Internal), false, true},
		"unavailable":          {of(codes.Unavailable), false, true},
		"a deadline":           {of(codes.DeadlineExceeded), false, true},
		"an error":             {func() (func(context.Context, things.ThingsClient), *service) { return unary(errors.New("failed")) }, false, true},
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
	for name, c := range map[string]func(opt policy.WaitOption) (grpcmw.Interceptors, func() int){
		"exclusive": func(opt policy.WaitOption) (grpcmw.Interceptors, func() int) {
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
		"concurrency": func(opt policy.WaitOption) (grpcmw.Interceptors, func() int) {
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
			if _, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"}); status.Code(err) != codes.Aborted && status.Code(err) != codes.ResourceExhausted {
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
	for name, chain := range map[string]grpcmw.Interceptors{
		"exclusive": exclusive.New(l, byID), "concurrency": concurrency.New(sem, byID),
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			found := make(chan bool, 2)
			s := service{watch: func(r *things.MakeRequest, stream grpc.ServerStreamingServer[things.Thing]) error {
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
				if _, err := other.Recv(); status.Code(err) != codes.Aborted && status.Code(err) != codes.ResourceExhausted {
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
			return nil, status.Error(codes.Unknown, "no lease")
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
	client := serve(t, &s, exclusive.New(locker, byID, grpcmw.OnError(func(_ *grpcmw.Call, err error) { errs <- err })))
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
		if _, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"}); status.Code(err) != codes.Internal {
			t.Errorf("%v", err)
		}
	}
}

func TestCallsBypassTheStore(t *testing.T) {
	store := newStore(t)
	store.Break(storetest.AcquireLease, storetest.Down)
	store.Break(storetest.AcquireLease, storetest.Down)
	for name, chain := range map[string]grpcmw.Interceptors{
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
		var header metadata.MD
		if _, err := serve(t, &s, chain).Make(t.Context(), &things.MakeRequest{Id: "1"}, grpc.Header(&header)); err != nil {
			t.Error(err)
		}
		if got := strings.Join(header.Get(name), "|"); got != "bypassed" {
			t.Errorf("%s is %q", name, got)
		}
	}
}
