package observability_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// onBothStores runs a test on a store in memory, and on a real Redis.
func onBothStores(t *testing.T, test func(t *testing.T, w *world, st store.Store)) {
	t.Run("memstore", func(t *testing.T) {
		w := newWorld(t)
		test(t, w, w.memstore())
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t)
		w := newWorld(t)
		test(t, w, w.redisstore(server))
	})
}

// The span of a waiter for a lock has the holder's label, and links to the span of its acquisition,
// in the same process and in another.
func TestSpanOfAWaiter(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world, st store.Store) {
		l := w.locker(st, lock.WithHolder("teller 1"))
		other := w.locker(st, lock.WithHolder("teller 2"))
		for name, waiting := range map[string]*lock.Locker{"the same process": l, "another process": other} {
			var lease *lock.Lease
			holds := w.request(func(ctx context.Context) { lease = must(l.Lock(ctx, "k")) })
			waits := w.request(func(ctx context.Context) {
				got := make(chan *lock.Lease)
				go func() { got <- must(waiting.Lock(ctx, "k")) }()
				until(t, "there is a waiter", func() bool {
					if waiting != l {
						return must(l.Inspect(ctx, "k")).Waiting == 1
					}
					_, err := l.TryLock(ctx, "k")
					return err.(*lock.HeldError).Waiting == 1
				})
				_ = lease.Unlock(ctx)
				_ = (<-got).Unlock(ctx)
			})
			span := w.last("acquire carts")
			if holder, _ := value(span, "lockkeeper.lock.holder"); holder != "teller 1" {
				t.Errorf("%s: it waits for %q", name, holder)
			}
			if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID() != holds.SpanContext.SpanID() ||
				span.Links[0].SpanContext.TraceID() != holds.SpanContext.TraceID() {
				t.Errorf("%s: it links to %v, want %v", name, span.Links, holds.SpanContext)
			}
			if span.Parent.SpanID() != waits.SpanContext.SpanID() {
				t.Errorf("%s: its parent is %v", name, span.Parent)
			}
		}
	})
}

// The span of a replay links to that of the attempt that did the work.
func TestReplayLinksToTheWork(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world, st store.Store) {
		g := w.guard(st)
		var attempt *guard.Attempt
		works := w.request(func(ctx context.Context) { attempt, _, _ = g.Begin(ctx, operation("1")) })
		_ = attempt.Complete(t.Context(), guard.Result{Data: []byte("done")})
		w.request(func(ctx context.Context) { _, _, _ = g.Begin(ctx, operation("1")) })
		span := w.last("begin orders")
		if result, _ := value(span, "lockkeeper.idempotency.result"); result != "replayed" {
			t.Fatalf("it is %q", result)
		}
		if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID() != works.SpanContext.SpanID() {
			t.Errorf("it links to %v, want %v", span.Links, works.SpanContext)
		}
	})
}

// A lost lease is one event, on the span of its acquisition.
func TestLossIsAnEventOfTheHolder(t *testing.T) {
	const ttl = 200 * time.Millisecond
	for mechanism, hold := range map[string]func(ctx context.Context, w *world, st store.Store) (ends func(context.Context)){
		"lock": func(ctx context.Context, w *world, st store.Store) func(context.Context) {
			lease := must(w.locker(st, lock.WithTTL(ttl)).Lock(ctx, "k"))
			return func(ctx context.Context) { _ = lease.Unlock(ctx) }
		},
		"semaphore": func(ctx context.Context, w *world, st store.Store) func(context.Context) {
			permit := must(w.semaphore(st, semaphore.WithTTL(ttl)).Acquire(ctx, "k"))
			return func(ctx context.Context) { _ = permit.Release(ctx) }
		},
		"idempotency": func(ctx context.Context, w *world, store store.Store) func(context.Context) {
			attempt, _, err := w.guard(store, guard.WithTTL(ttl)).Begin(ctx, operation("k"))
			if err != nil {
				w.t.Fatal(err)
			}
			return func(ctx context.Context) { _ = attempt.Abandon(ctx) }
		},
	} {
		t.Run(mechanism, func(t *testing.T) {
			w := newWorld(t)
			st := w.memstore()
			st.Break(storetest.RenewLeases, storetest.Down)
			st.Break(storetest.RenewLeases, storetest.Down)
			st.Break(storetest.RenewOperations, storetest.Down)
			span := w.request(func(ctx context.Context) {
				end := hold(ctx, w, st)
				expires(w, mechanism)
				end(ctx)
			})
			if len(span.Events) != 1 || span.Events[0].Name != "lockkeeper.lease.lost" {
				t.Fatalf("the holder's span has the events %v", span.Events)
			}
			set := attribute.NewSet(span.Events[0].Attributes...)
			if how, _ := set.Value("lockkeeper.lease.end"); how.AsString() != "expired" {
				t.Errorf("the event has %v", set)
			}
			if n := w.sum("lockkeeper.lease.losses"); n != 1 {
				t.Errorf("%d losses are counted", n)
			}
			if n := len(w.log.records(t, "a lease was lost")); n != 1 {
				t.Errorf("%d losses are logged", n)
			}
		})
	}
}

// A loss that no renewal has found is an event at the release, once.
func TestLossFoundAtTheRelease(t *testing.T) {
	for mechanism, lose := range map[string]func(ctx context.Context, w *world, st store.Store) error{
		"semaphore": func(ctx context.Context, w *world, st store.Store) error {
			return must(w.semaphore(forgetful{st}).Acquire(ctx, "k")).Release(ctx)
		},
		"idempotency": func(ctx context.Context, w *world, st store.Store) error {
			tap := &lastBegun{Store: st}
			g := w.guard(tap)
			attempt, _, _ := g.Begin(ctx, operation("k"))
			_ = must(st.AbandonOperation(ctx, tap.last.AttemptRef))
			other, _, _ := g.Begin(ctx, operation("k"))
			defer func() { _ = other.Abandon(ctx) }()
			return attempt.Complete(ctx, guard.Result{})
		},
	} {
		t.Run(mechanism, func(t *testing.T) {
			w := newWorld(t)
			span := w.request(func(ctx context.Context) {
				if err := lose(ctx, w, w.memstore()); !errors.Is(err, semaphore.ErrLost) && !errors.Is(err, guard.ErrLost) {
					t.Fatal(err)
				}
			})
			logged := w.log.records(t, "a lease was lost")
			if len(span.Events) != 1 || len(logged) != 1 || logged[0]["end"] != "lost" || w.sum("lockkeeper.lease.losses") != 1 {
				t.Errorf("the events %v, logged %v, counted %d", span.Events, logged, w.sum("lockkeeper.lease.losses"))
			}
		})
	}
}

// forgetful is a store that has lost the permits that are released.
type forgetful struct{ store.Store }

func (s forgetful) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	_, err := s.Store.ReleaseLeases(ctx, refs)
	return slices.Repeat([]store.ReleaseOutcome{store.NotHeld}, len(refs)), err
}

// A denial does not change the status of the server's span. An outage is an error with error.type.
// Package mwtest tests every framework's own tracing.
func TestStatusOfTheServersSpan(t *testing.T) {
	w := newWorld(t)
	st := w.memstore()
	s := w.site(st)
	last := func() tracetest.SpanStub { return w.last("POST") }
	for range 3 {
		s.send("ann", "k", "")
		if span := last(); span.Status.Code != codes.Unset || slices.Contains(keys(span), "error.type") {
			t.Errorf("a decision: status %v, attributes %v", span.Status, keys(span))
		}
	}
	if result, _ := value(last(), "lockkeeper.rate_limit.result"); result != "denied" {
		t.Errorf("the last one was %s", result)
	}
	st.Break(storetest.Any, storetest.Down)
	s.send("bob", "k", "")
	st.Mend(storetest.Any) // so that calls in flight can finish
	if kind, _ := value(last(), "error.type"); kind != "store_unavailable" || last().Status.Code != codes.Error {
		t.Errorf("without a store: status %v, error.type %q", last().Status, kind)
	}
}

// A waiter for tokens has a span, whose status is an error if the store fails, and not for a
// denial.
func TestWaitingForTokensHasASpan(t *testing.T) {
	w := newWorld(t)
	st := w.memstore()
	l := w.limiter(st, tokenbucket.PerHour(1))
	for _, step := range []struct {
		fault  storetest.Fault
		result string
		status codes.Code
	}{{0, "acquired", codes.Unset}, {0, "denied", codes.Unset}, {storetest.Down, "error", codes.Error}} {
		if step.fault != 0 {
			st.Break(storetest.TakeTokens, step.fault)
		}
		w.request(func(ctx context.Context) {
			soon, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_ = l.Wait(soon, "k")
		})
		span := w.last("acquire api")
		if result, _ := value(span, "lockkeeper.rate_limit.result"); result != step.result || span.Status.Code != step.status {
			t.Errorf("result %q, status %v; want %+v", result, span.Status, step)
		}
	}
}

func value(s tracetest.SpanStub, key attribute.Key) (string, bool) {
	set := attribute.NewSet(s.Attributes...)
	v, ok := set.Value(key)
	return v.AsString(), ok
}

func keys(s tracetest.SpanStub) (all []string) {
	for _, a := range s.Attributes {
		all = append(all, string(a.Key))
	}
	return all
}
