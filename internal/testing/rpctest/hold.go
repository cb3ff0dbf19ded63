package rpctest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

func callsOfAKeyExcludeEachOther(t *rig) {
	g := newGate()
	s := Service{make: g.make}
	locker := NewLocker(t, newStore(t))
	client := serve(t, &s, t.Exclusive(locker, t.ByField("id")))
	first := making(t.Context(), t, client, &Request{ID: "1"})
	g.runs(t)
	_, err := client.Make(t.Context(), &Request{ID: "1"})
	denies(t, err, policy.Locked)
	if _, err := locker.TryLock(t.Context(), "1"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("without gRPC: %v", err)
	}
	other := making(t.Context(), t, client, &Request{ID: "2"})
	g.runs(t)
	g.let()
	g.let()
	is(t, result(t, first).thing, nil, "done")
	is(t, result(t, other).thing, nil, "done")
	g.let()
	thing, err := client.Make(t.Context(), &Request{ID: "1"})
	is(t, thing, err, "done")
}

func overload(t *rig) {
	g := newGate()
	s := Service{make: g.make}
	client := serve(t, &s, t.Concurrency(NewSemaphore(t, newStore(t), 1), t.ByField("id"), policy.Overload()))
	first := making(t.Context(), t, client, &Request{ID: "1"})
	g.runs(t)
	_, err := client.Make(t.Context(), &Request{ID: "1"})
	denies(t, err, policy.ReducedCapacity)
	if after := t.DetailsOf(err).retryAfter(); after < time.Second || after > 4*time.Second {
		t.Errorf("it says to retry after %v", after)
	}
	g.let()
	is(t, result(t, first).thing, nil, "done")
}

// A tier is refused beyond its part, and higher ones pass. An unknown one is the lowest.
func tiersOfCalls(t *rig) {
	g := newGate()
	s := Service{make: g.make}
	sem := NewSemaphore(t, newStore(t), 4)
	if err := sem.SetTierShares(semaphore.TierShares{Normal: 0.75, Low: 0.5, Background: 0.25}); err != nil {
		t.Fatal(err)
	}
	tiers := map[string]policy.Tier{"": policy.Critical, "normal": policy.Normal, "low": policy.Low, "background": policy.Background, "unknown": 77}
	client := serve(t, &s, t.Concurrency(sem, t.Global(), t.Tiers(func(call Call) policy.Tier {
		return tiers[strings.Join(t.Incoming(call.Context(), "tier"), "")]
	})))
	in := func(tier string) context.Context { return t.Sending(t.Context(), "tier", tier) }
	var answers []<-chan answer
	lower := []string{"unknown"}
	for _, tier := range []string{"background", "low", "normal", ""} {
		answers = append(answers, making(in(tier), t, client, &Request{ID: "1"}))
		g.runs(t)
		lower = append(lower, tier)
		for _, tier := range lower {
			_, err := client.Make(in(tier), &Request{ID: "1"})
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
func samplesOfCalls(t *rig) {
	unary := func(err error) (call func(context.Context, Client), s *Service) {
		return func(ctx context.Context, c Client) { _, _ = c.Make(ctx, &Request{ID: "1"}) },
			&Service{make: func(context.Context, *Request) (*Thing, error) { return &Thing{}, err }}
	}
	left := func() (func(context.Context, Client), *Service) {
		entered := make(chan struct{})
		return func(ctx context.Context, c Client) {
				ctx, cancel := context.WithCancel(ctx)
				go func() {
					<-entered
					cancel()
				}()
				_, _ = c.Make(ctx, &Request{ID: "1"})
			}, &Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
				entered <- struct{}{}
				<-ctx.Done()
				return &Thing{}, nil
			}}
	}
	stream := func() (func(context.Context, Client), *Service) {
		return func(ctx context.Context, c Client) {
				_, _ = must(c.Watch(ctx, &Request{ID: "1"})).Recv()
			}, &Service{watch: func(_ *Request, s ServerStream) error {
				return s.Send(&Thing{})
			}}
	}
	of := func(code Code) func() (func(context.Context, Client), *Service) {
		return func() (func(context.Context, Client), *Service) { return unary(failure(t, code, "")) }
	}
	for name, c := range map[string]struct {
		make           func() (func(context.Context, Client), *Service)
		worked, counts bool
	}{
		"an answer":            {of(0), true, true},
		"the client's mistake": {of(NotFound), true, true},
		"a refusal":            {of(ResourceExhausted), true, true},
		"the server's failure": {of(Internal), false, true},
		"unavailable":          {of(Unavailable), false, true},
		"a deadline":           {of(DeadlineExceeded), false, true},
		"an error":             {func() (func(context.Context, Client), *Service) { return unary(errors.New("failed")) }, false, true},
		"a client that left":   {left, false, true},
		"a stream":             {stream, false, false},
	} {
		t.Run(name, func(t *rig) {
			t.Parallel()
			for _, target := range []time.Duration{time.Hour, time.Nanosecond} {
				change := tiertest.Adapts(t, target, func(sem *semaphore.Semaphore) func() {
					call, s := c.make()
					client := serve(t, s, t.Concurrency(sem, t.ByField("id")))
					return func() { call(t.Context(), client) }
				})
				if target == time.Hour && change > 0 != c.worked || target < time.Hour && change < 0 != c.counts {
					t.Errorf("with a target of %v the capacity changes by %d", target, change)
				}
			}
		})
	}
}

func callsAreLimitedToTheCapacity(t *rig) {
	g := newGate()
	s := Service{make: g.make}
	client := serve(t, &s, t.Concurrency(NewSemaphore(t, newStore(t), 2), t.ByField("id")))
	var answers []<-chan answer
	for range 2 {
		answers = append(answers, making(t.Context(), t, client, &Request{ID: "1"}))
		g.runs(t)
	}
	_, err := client.Make(t.Context(), &Request{ID: "1"})
	denies(t, err, policy.TooManyAtOnce)
	g.let()
	g.let()
	for _, a := range answers {
		is(t, result(t, a).thing, nil, "done")
	}
}

func waitingCallIsServed(t *rig) {
	for name, c := range map[string]func(opt policy.WaitOption) (Interceptor, func() int){
		"exclusive": func(opt policy.WaitOption) (Interceptor, func() int) {
			l := NewLocker(t, newStore(t))
			return t.Exclusive(l, t.ByField("id"), opt), func() int {
				_, err := l.TryLock(t.Context(), "1")
				var held *lock.HeldError
				if errors.As(err, &held) {
					return held.Waiting
				}
				return 0
			}
		},
		"concurrency": func(opt policy.WaitOption) (Interceptor, func() int) {
			sem := NewSemaphore(t, newStore(t), 1)
			return t.Concurrency(sem, t.ByField("id"), opt), func() int {
				_, err := sem.TryAcquire(t.Context(), "1")
				var busy *semaphore.BusyError
				if errors.As(err, &busy) {
					return busy.Waiting
				}
				return 0
			}
		},
	} {
		t.Run(name, func(t *rig) {
			g := newGate()
			s := Service{make: g.make}
			chain, waiting := c(policy.Wait(patience))
			client := serve(t, &s, chain)
			first := making(t.Context(), t, client, &Request{ID: "1"})
			g.runs(t)
			second := making(t.Context(), t, client, &Request{ID: "1"})
			reaches(t, waiting, 1)
			g.idle(t)
			g.let()
			is(t, result(t, first).thing, nil, "done")
			g.runs(t)
			g.let()
			is(t, result(t, second).thing, nil, "done")

			chain, _ = c(policy.Wait(50 * time.Millisecond))
			client = serve(t, &s, chain)
			first = making(t.Context(), t, client, &Request{ID: "1"})
			g.runs(t)
			if _, err := client.Make(t.Context(), &Request{ID: "1"}); t.CodeOf(err) != Aborted && t.CodeOf(err) != ResourceExhausted {
				t.Errorf("a call that has waited for the maximum: %v", err)
			}
			g.let()
			result(t, first)
		})
	}
}

// A stream has its lock, or permit, from its beginning to its end.
func streamHoldsUntilItsEnd(t *rig) {
	l, sem := NewLocker(t, newStore(t)), NewSemaphore(t, newStore(t), 1)
	for name, chain := range map[string]Interceptor{
		"exclusive": t.Exclusive(l, t.ByField("id")), "concurrency": t.Concurrency(sem, t.ByField("id")),
	} {
		t.Run(name, func(t *rig) {
			g := newGate()
			found := make(chan bool, 2)
			s := Service{watch: func(r *Request, stream ServerStream) error {
				lease, locked := lock.FromContext(stream.Context())
				permit, permitted := semaphore.FromContext(stream.Context())
				found <- locked && lease.Key() == "1" || permitted && permit.Key() == "1"
				g.pass()
				return stream.Send(&Thing{Text: "done " + r.Tags[0]})
			}}
			client := serve(t, &s, chain)
			r := &Request{ID: "1", Tags: []string{"tag"}}
			for range 2 { // the second finds it free
				stream := must(client.Watch(t.Context(), r))
				g.runs(t)
				if !<-found {
					t.Error("the handler does not find what it holds")
				}
				other := must(client.Watch(t.Context(), r))
				if _, err := other.Recv(); t.CodeOf(err) != Aborted && t.CodeOf(err) != ResourceExhausted {
					t.Errorf("another stream: %v", err)
				}
				g.let()
				thing, err := stream.Recv()
				is(t, thing, err, "done tag")
				if _, err := stream.Recv(); err == nil {
					t.Error("the stream has not ended")
				}
				if name == "exclusive" {
					continue
				}
				testpace.Eventually(t, patience, "the permit is given back after the answer", func() bool {
					permit, err := sem.TryAcquire(t.Context(), "1")
					if err == nil {
						_ = permit.Release(t.Context())
					}
					return err == nil
				})
			}
		})
	}
}

func handlerFindsItsLease(t *rig) {
	s := Service{make: func(ctx context.Context, r *Request) (*Thing, error) {
		lease, ok := lock.FromContext(ctx)
		if !ok || lease.Key() != r.ID || lease.Fence().Number <= 0 {
			return nil, failure(t, Unknown, "no lease")
		}
		return &Thing{}, nil
	}}
	client := serve(t, &s, t.Exclusive(NewLocker(t, newStore(t)), t.ByField("id")))
	if _, err := client.Make(t.Context(), &Request{ID: "1"}); err != nil {
		t.Error(err)
	}
}

// A loss during the handler ends its context, and is reported to the server, not to the client.
func lostLock(t *rig) {
	store := newStore(t)
	locker := NewLocker(t, store)
	errs := make(chan error, 1)
	s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
		lease, _ := lock.FromContext(ctx)
		if ok, err := locker.ForceUnlock(ctx, "1", lease.Fence().Number); !ok {
			return nil, err
		}
		<-ctx.Done()
		return &Thing{Text: context.Cause(ctx).Error()}, nil
	}}
	client := serve(t, &s, t.Exclusive(locker, t.ByField("id"), t.OnError(func(_ Call, err error) { errs <- err })))
	thing, err := client.Make(t.Context(), &Request{ID: "1"})
	is(t, thing, err, lock.ErrLost.Error())
	if err := <-errs; !errors.Is(err, lock.ErrLost) {
		t.Errorf("reported %v", err)
	}
}

func panicReleasesTheLock(t *rig) {
	s := Service{make: func(context.Context, *Request) (*Thing, error) { panic("boom") }}
	client := serve(t, &s, t.Exclusive(NewLocker(t, newStore(t)), t.ByField("id")))
	for range 2 {
		if _, err := client.Make(t.Context(), &Request{ID: "1"}); t.CodeOf(err) != Internal {
			t.Errorf("%v", err)
		}
	}
}

func callsBypassTheStore(t *rig) {
	store := newStore(t)
	store.Break(storetest.AcquireLease, storetest.Down)
	store.Break(storetest.AcquireLease, storetest.Down)
	for name, chain := range map[string]Interceptor{
		"lock-status":        t.Exclusive(NewLocker(t, store), t.ByField("id"), policy.RunUnprotected()),
		"concurrency-status": t.Concurrency(NewSemaphore(t, store, 1), t.ByField("id"), policy.FailOpen()),
	} {
		s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
			_, locked := lock.FromContext(ctx)
			_, permitted := semaphore.FromContext(ctx)
			if locked || permitted {
				return nil, errors.New("it holds something")
			}
			return &Thing{}, nil
		}}
		var header http.Header
		if _, err := serve(t, &s, chain).Make(t.Context(), &Request{ID: "1"}, intoHeader(&header)); err != nil {
			t.Error(err)
		}
		if got := strings.Join(header.Values(name), "|"); got != "bypassed" {
			t.Errorf("%s is %q", name, got)
		}
	}
}
